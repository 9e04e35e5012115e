-- A worker could not fetch or evaluate. A passing reason queues the evaluation again, while the
-- attempts last; anything else is its end. Consequences by class: gradient.outcome_class.
-- Locks: the turn; the assignment, the evaluation. Returns: {status, decision}. Idempotent.
-- Errors: GR003; GR005 no such outcome class.
-- Execute: server
create or replace function graph.evaluation_failed(
  p_assignment bigint, p_worker text, p_outcome_class text, p_message text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
  v_class gradient.outcome_class;
  v_status gradient.evaluation_status;
  v_again boolean;
begin
  perform graph.take_turn();
  v_job := graph.own_assignment(p_assignment, p_worker, 'Evaluation', 'Failed');
  v_class := graph.outcome_class(p_outcome_class);
  select e.status into v_status from gradient.evaluation e where e.id = v_job.evaluation for no key update;
  if v_job.finished_at is null then
    perform graph.close_assignment(p_assignment, 'Failed', p_outcome_class, 'Failed', p_message);
    v_again := v_class.decision = 'Return'
      or (v_class.decision in ('Retry', 'Upload', 'SubstituteMiss')
          and (select count(*) from gradient.dispatched_job o
               where o.job = v_job.job and o.outcome = 'Failed') < gradient.setting_int('eval.max_attempts'));
    if not graph.is_active(v_status) then
      null;
    elsif v_job.abort_requested_at is not null or v_class.decision = 'Aborted' then
      v_status := graph.move_evaluation(v_job.evaluation, 'Aborted', p_worker);
    elsif v_again then
      v_status := graph.move_evaluation(v_job.evaluation, 'Queued', p_worker);
      insert into gradient.evaluation_message (evaluation, level, message, source, created_at)
      select v_job.evaluation, 'Warning', format('Tried again after %s: %s', v_class.shown, left(p_message, 8192)), 'worker', gradient.current_time()
      where v_class.decision <> 'Return';
    else
      perform graph.fail_evaluation(v_job.evaluation, left(p_message, 65536), 'worker');
      v_status := 'Failed';
    end if;
  end if;
  return jsonb_build_object('status', v_status, 'decision', v_class.decision);
end
$fn$;

comment on function graph.evaluation_failed(bigint, text, text, text) is
  'Report of p_worker: the evaluation job of p_assignment failed with p_outcome_class and p_message. Queues it again for a passing reason (setting eval.max_attempts), else ends it. Returns {status, decision}. Errors GR003, GR005.';
