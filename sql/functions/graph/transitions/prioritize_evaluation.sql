-- Lets an evaluation in flight go first: what it names and is not built yet comes before everything
-- that is not prioritized, what becomes ready later too.
-- Locks: the turn; the evaluation; then as graph.sync_ready. Returns: {builds}: how many of its builds
-- are ready now. Idempotent. Errors: GR001 EvaluationFinished; GR002.
-- Execute: server
create or replace function graph.prioritize_evaluation(p_evaluation bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_status gradient.evaluation_status;
  v_ready bigint[];
begin
  perform graph.take_turn();
  select e.status into v_status from gradient.evaluation e where e.id = p_evaluation for no key update;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  if not graph.is_active(v_status) then
    raise exception using errcode = 'GR001',
      message = format('Evaluation %s has ended; there is nothing to hurry.', p_evaluation),
      detail = format('EvaluationFinished: it is %s.', v_status),
      hint = format('gradient eval show %s', p_evaluation);
  end if;
  update gradient.evaluation e set prioritized = true where e.id = p_evaluation and not e.prioritized;
  v_ready := array(
    select distinct r.derivation_build
    from gradient.ready_build r
    join gradient.build_job j on j.derivation_build = r.derivation_build
    where j.evaluation = p_evaluation);
  perform graph.sync_ready(v_ready);
  perform gradient.kick('evaluations');
  return jsonb_build_object('builds', cardinality(v_ready));
end
$fn$;

comment on function graph.prioritize_evaluation(bigint) is
  'Puts the builds of p_evaluation before what is not prioritized, now and when they become ready. Returns {builds}. Errors GR001 (EvaluationFinished), GR002.';
