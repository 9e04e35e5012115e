-- Whether a token is that of an open assignment.
-- Locks: none.
-- Returns: one row, or none when the assignment is closed or the token is another's.
-- Execute: server
create or replace function graph.job_access(p_assignment bigint, p_token text)
  returns table (worker_id text, kind text, project bigint, max_nar_size bigint)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return query
  select j.worker_id, j.kind::text, j.project,
         -- No cache may get a NAR above its own limit, and a job writes all of them at once.
         coalesce((select min(c.max_nar_size)
                   from gradient.project_cache s
                   join gradient.cache c on c.id = s.cache
                   where s.project = j.project and c.active),
                  0)
  from gradient.dispatched_job j
  where j.id = p_assignment and j.finished_at is null
    and j.upload_token_hash = sha256(convert_to(p_token, 'UTF8'));
end
$fn$;

comment on function graph.job_access(bigint, text) is
  'The worker, kind and project of an open assignment whose upload token this is, with the largest NAR (bytes) that every cache of its project accepts; 0 when it has none. No row: closed, or not its token.';
