-- A person tries everything again that failed in an evaluation. It is reopened with the builds that it
-- names: nothing is fetched, evaluated or walked. Where nothing is left to do it ends at once.
-- Locks: the turn; the evaluation; then as graph.repair_build_graph.
-- Returns: {status, builds}: how many failed builds came back.
-- Errors: GR001 EvaluationFinished, NewerEvaluation, WrongStatus; GR002.
-- Execute: server
create or replace function graph.retry_evaluation(p_evaluation bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_before bigint;
  v_after bigint;
begin
  perform graph.take_turn();
  if not graph.reopen_evaluation(p_evaluation) then
    raise exception using errcode = 'GR001',
      message = format('Evaluation %s is at its builds still.', p_evaluation),
      detail = 'WrongStatus: it has not ended.',
      hint = format('gradient build retry %s BUILD tries one of its builds again.', p_evaluation);
  end if;
  update gradient.build_job j set aborted = false where j.evaluation = p_evaluation and j.aborted;
  select e.failed_shared_builds into v_before from gradient.evaluation e where e.id = p_evaluation;
  -- An aborted evaluation asked for nothing; now it does again; the repair settles what follows.
  perform graph.update_need(array(
    select p.derivation from gradient.entry_point p where p.evaluation = p_evaluation));
  perform graph.repair_build_graph(p_evaluation, 'retry');
  perform graph.check_evaluations_done(array[p_evaluation]);
  select count(*) into v_after
  from gradient.build_job j
  join gradient.derivation_build b on b.derivation = j.derivation_build
  where j.evaluation = p_evaluation and graph.failed_for_verdict(b.status);
  return jsonb_build_object(
    'status', (select e.status from gradient.evaluation e where e.id = p_evaluation),
    'builds', v_before - v_after);
end
$fn$;

comment on function graph.retry_evaluation(bigint) is
  'Reopens p_evaluation and tries everything again that failed in it, without a walk. Returns {status, builds}. Errors GR001 (EvaluationFinished, NewerEvaluation, WrongStatus), GR002.';
