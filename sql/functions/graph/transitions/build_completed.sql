-- A build ended well: success only if every output lies in the cache. Otherwise the attempt is
-- "upload failed", costs nothing, and the build is tried again.
-- Locks: the turn; the assignment; then as the counters. Returns: {status, outcome_class}.
-- Idempotent. Errors: GR003.
-- Execute: server
create or replace function graph.build_completed(p_assignment bigint, p_worker text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_job gradient.dispatched_job;
  v_build gradient.derivation_build;
  v_spread record;
begin
  perform graph.take_turn();
  v_job := graph.own_assignment(p_assignment, p_worker, 'Build', 'Completed');
  perform graph.lock_shared_builds(null, array[v_job.derivation_build]);
  select * into v_build from gradient.derivation_build b where b.derivation = v_job.derivation_build for no key update;
  if v_job.finished_at is not null then
    return jsonb_build_object('status', v_build.status, 'outcome_class', v_job.outcome_class);
  end if;
  if not exists (select from graph.present(array[v_job.derivation_build])) then
    perform graph.close_assignment(p_assignment, 'Completed', 'upload_failed', 'Failed',
      'Built, but not every output is in the cache.');
    perform graph.decide_failure(v_job.derivation_build, 'upload_failed', null);
    return jsonb_build_object('status', (select b.status from gradient.derivation_build b where b.derivation = v_job.derivation_build),
      'outcome_class', 'upload_failed');
  end if;

  perform graph.close_assignment(p_assignment, 'Completed', null,
    case when v_build.substituted then 'Substituted' else 'Built' end::gradient.attempt_outcome, null);
  update gradient.derivation_build b
  set status = case when b.substituted then 'Substituted' else 'Completed' end::gradient.build_status,
      retry_at = null, failed_by = null, prioritized = false, updated_at = v_now
  where b.derivation = v_job.derivation_build and not graph.succeeded(b.status)
  returning * into v_build;
  insert into gradient.phase_event (subject_kind, subject, phase, at, worker_id)
  values ('Build', v_job.derivation_build, v_build.status::text, v_now, p_worker);
  v_spread := graph.became_fetchable(array[v_job.derivation_build]);
  perform graph.after_status_move(array[v_job.derivation_build], v_spread.released);
  return jsonb_build_object('status', v_build.status, 'outcome_class', null);
end
$fn$;

comment on function graph.build_completed(bigint, text) is
  'Report of p_worker: the build of p_assignment succeeded and everything is uploaded. Becomes Completed or Substituted if every output is in the cache, else the attempt is upload_failed and tried again. Returns {status, outcome_class}. Error GR003.';
