-- A worker began to walk the derivations.
-- Locks: the assignment's and the evaluation's row. Returns: {status}. Idempotent.
-- Errors: GR003 the assignment is not this worker's open one.
-- Execute: server
create or replace function graph.evaluating_derivations(p_assignment bigint, p_worker text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
  v_status gradient.evaluation_status;
begin
  v_job := graph.own_assignment(p_assignment, p_worker, 'Evaluation', null);
  select e.status into v_status from gradient.evaluation e where e.id = v_job.evaluation for no key update;
  if v_status in ('Queued', 'Waiting', 'Fetching', 'EvaluatingFlake') then
    v_status := graph.move_evaluation(v_job.evaluation, 'EvaluatingDerivation', p_worker);
  end if;
  update gradient.dispatched_job o
  set started_at = gradient.current_time() where o.id = p_assignment and o.started_at is null;
  return jsonb_build_object('status', v_status);
end
$fn$;

comment on function graph.evaluating_derivations(bigint, text) is
  'Report of p_worker: the walk of p_assignment began. Returns {status} of the evaluation. Error GR003.';
