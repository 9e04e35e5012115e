-- The outputs exist on the worker; they are uploaded next. Nothing ends here: the status moves with
-- graph.build_completed, after every NAR is committed.
-- Locks: the assignment's and the shared build's row. Returns: {}. Idempotent. Errors: GR003.
-- Execute: server
create or replace function graph.build_output(
  p_assignment bigint, p_worker text, p_substituted boolean, p_metrics jsonb)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
begin
  v_job := graph.own_assignment(p_assignment, p_worker, 'Build', null);
  update gradient.derivation_build b
  set substituted = p_substituted
  where b.derivation = v_job.derivation_build and b.substituted <> p_substituted
    and not graph.succeeded(b.status);
  if not p_substituted and p_metrics ->> 'build_time_ms' is not null then
    insert into gradient.derivation_metric (
      derivation, pname, architecture, build_time_ms, peak_ram_mb, cpu_time_ms, output_bytes, worker_id, created_at)
    select d.id, coalesce(d.pname, d.name), d.architecture, (p_metrics ->> 'build_time_ms')::bigint,
      (p_metrics ->> 'peak_ram_mb')::bigint, (p_metrics ->> 'cpu_time_ms')::bigint,
      (p_metrics ->> 'output_bytes')::bigint, p_worker, a.created_at
    from gradient.derivation d
    join gradient.build_attempt a on a.dispatched_job = p_assignment
    where d.id = v_job.derivation_build
      and not exists (
        select from gradient.derivation_metric m
        where m.derivation = d.id and m.worker_id = p_worker and m.created_at = a.created_at);
  end if;
  return '{}';
end
$fn$;

comment on function graph.build_output(bigint, text, boolean, jsonb) is
  'Report of p_worker: the outputs of p_assignment exist on it. p_substituted: nothing was built; p_metrics: {build_time_ms, peak_ram_mb, cpu_time_ms, output_bytes} or null. Returns {}. Error GR003.';
