-- A build did not succeed. What that means stands in gradient.outcome_class.
-- An input that was missing is made again, unless that has been tried often enough (setting
-- build.inputs_unavailable_max_loops).
-- Locks: the turn; the assignment; then as graph.decide_failure. Returns: {status, decision}.
-- Idempotent. Errors: GR003; GR005 no such outcome class.
-- Execute: server
create or replace function graph.build_failed(
  p_assignment bigint, p_worker text, p_outcome_class text, p_message text, p_missing_paths text[])
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
  v_class gradient.outcome_class;
  v_attempt bigint;
  v_status gradient.build_status;
begin
  perform graph.take_turn();
  v_job := graph.own_assignment(p_assignment, p_worker, 'Build', 'Failed');
  v_class := graph.outcome_class(p_outcome_class);
  if v_job.finished_at is null then
    perform graph.close_assignment(p_assignment, 'Failed', p_outcome_class,
      case when v_class.decision in ('Aborted', 'Return') then 'Aborted' else 'Failed' end::gradient.attempt_outcome,
      concat_ws(E'\n', p_message, 'Missing: ' || nullif(array_to_string(p_missing_paths, ' '), '')));
    select a.id into v_attempt from gradient.build_attempt a where a.dispatched_job = p_assignment;
    if v_job.abort_requested_at is null then
      perform graph.decide_failure(v_job.derivation_build, p_outcome_class, v_attempt);
      if p_outcome_class = 'missing_input' and not graph.inputs_given_up(v_job.derivation_build) then
        perform graph.repair_missing_inputs(v_job.derivation_build, p_missing_paths);
      end if;
    else
      -- The abort has moved the build already; since then it may be wanted again.
      perform graph.after_status_move(array[v_job.derivation_build], null);
    end if;
  end if;
  select b.status into v_status from gradient.derivation_build b where b.derivation = v_job.derivation_build;
  return jsonb_build_object('status', v_status, 'decision', v_class.decision);
end
$fn$;

comment on function graph.build_failed(bigint, text, text, text, text[]) is
  'Report of p_worker: the build of p_assignment failed with p_outcome_class and p_message; p_missing_paths: inputs it could not fetch. Returns {status, decision}. Errors GR003, GR005.';
