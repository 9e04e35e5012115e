-- The walk has ended and every batch of it is recorded: repair what the evaluation names, then build.
-- Locks: the turn; the assignment, the evaluation; then as graph.repair_build_graph.
-- Returns: {status} of the evaluation. Idempotent. Errors: GR003.
-- Execute: server
create or replace function graph.stream_completed(p_assignment bigint, p_worker text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
  v_status gradient.evaluation_status;
begin
  perform graph.take_turn();
  v_job := graph.own_assignment(p_assignment, p_worker, 'Evaluation', 'Completed');
  select e.status into v_status from gradient.evaluation e where e.id = v_job.evaluation for no key update;
  if v_job.finished_at is not null then
    return jsonb_build_object('status', v_status);
  end if;
  perform graph.close_assignment(p_assignment, 'Completed', null, 'Built', null);
  if v_status in ('Queued', 'Fetching', 'EvaluatingFlake', 'EvaluatingDerivation') then
    perform graph.move_evaluation(v_job.evaluation, 'Building', p_worker);
    perform graph.repair_build_graph(v_job.evaluation, 'eval');
    perform graph.check_evaluations_done(array[v_job.evaluation]);
  end if;
  select e.status into v_status from gradient.evaluation e where e.id = v_job.evaluation;
  return jsonb_build_object('status', v_status);
end
$fn$;

comment on function graph.stream_completed(bigint, text) is
  'Report of p_worker: the evaluation of p_assignment has been read and recorded whole. Repairs its graph, moves it to Building and ends it if nothing is left. Returns {status}. Error GR003.';
