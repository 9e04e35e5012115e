-- A worker began with a build: first with its inputs, then (p_builder_started) with its builder,
-- which is when the clock of its time limit starts.
-- Locks: the assignment's and the shared build's row. Returns: {aborted}: whether the worker should
-- stop, because the build was aborted meanwhile. Idempotent. Errors: GR003.
-- Execute: server
create or replace function graph.build_started(p_assignment bigint, p_worker text, p_builder_started boolean)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_job gradient.dispatched_job;
begin
  v_job := graph.own_assignment(p_assignment, p_worker, 'Build', null);
  if v_job.abort_requested_at is not null then
    return jsonb_build_object('aborted', true);
  end if;
  update gradient.derivation_build b
  set status = 'Building', updated_at = v_now
  where b.derivation = v_job.derivation_build and b.status = 'Queued';
  if found then
    insert into gradient.phase_event (subject_kind, subject, phase, at, worker_id)
    values ('Build', v_job.derivation_build, 'Building', v_now, p_worker);
  end if;
  update gradient.dispatched_job o set started_at = v_now where o.id = p_assignment and o.started_at is null;
  if p_builder_started then
    update gradient.build_attempt a
    set build_started_at = v_now
    where a.dispatched_job = p_assignment and a.build_started_at is null;
  end if;
  return jsonb_build_object('aborted', false);
end
$fn$;

comment on function graph.build_started(bigint, text, boolean) is
  'Report of p_worker: it began with the build of p_assignment; p_builder_started: its builder runs. Returns {aborted}: whether to stop. Error GR003.';
