-- The fetch step is done: the flake's source lies in the cache, exported from this commit.
-- Locks: the assignment's and the evaluation's row. Returns: {status}. Idempotent.
-- Errors: GR003 the assignment is not this worker's open one; GR005 malformed path or commit.
-- Execute: server
create or replace function graph.fetch_completed(
  p_assignment bigint, p_worker text, p_flake_source text, p_commit text, p_commit_message text, p_commit_author text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
  v_commit bigint;
  v_status gradient.evaluation_status;
begin
  v_job := graph.own_assignment(p_assignment, p_worker, 'Evaluation', null);
  if p_flake_source is null or p_flake_source not like '/nix/store/%' or not graph.is_store_name(substr(p_flake_source, 12))
     or p_commit !~ '^[0-9a-f]{40,64}$' then
    raise exception using errcode = 'GR005',
      message = format('Malformed flake source "%s" or commit "%s" of evaluation %s.', p_flake_source, p_commit, v_job.evaluation),
      hint = format('select * from gradient.dispatched_job where id = %s;', p_assignment);
  end if;
  if p_commit is not null then
    insert into gradient.commit (hash, message, author_name)
    values (p_commit, coalesce(left(p_commit_message, 4096), ''), left(p_commit_author, 255))
    on conflict (hash) do nothing;
    select c.id into v_commit from gradient.commit c where c.hash = p_commit;
  end if;
  update gradient.evaluation e
  set flake_source = p_flake_source, commit = coalesce(v_commit, e.commit)
  where e.id = v_job.evaluation and graph.is_active(e.status)
  returning e.status into v_status;
  return jsonb_build_object('status', v_status);
end
$fn$;

comment on function graph.fetch_completed(bigint, text, text, text, text, text) is
  'Report of p_worker: the fetch step of p_assignment put the flake''s source (store path) of p_commit into the cache. Returns {status} of the evaluation. Errors GR003, GR005.';
