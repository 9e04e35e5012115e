-- Which NAR files a job may fetch: those of every backed path.
-- Locks: none.
-- Returns: one row, or none.
-- Execute: server
create or replace function graph.job_nar(p_file_hash text)
  returns table (file_size bigint, compression text)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return query
  select n.file_size, n.compression
  from gradient.nar_object n
  where n.file_hash = p_file_hash
    and exists (select from gradient.cached_path p where p.file_hash = n.file_hash);
end
$fn$;

comment on function graph.job_nar(text) is
  'Size (bytes) and compression of the NAR file (sha256:<base 32>) of a backed path. No row: no backed path has it.';
