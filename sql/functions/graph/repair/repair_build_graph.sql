-- The repair pass of customer/waiting-and-recovery, over the closure of one evaluation. Its five
-- steps run in order; the first that fails fails the call.
-- p_scope: eval, unstick or retry; see graph.requeue_failed_closure.
-- Locks: the turn; rows by derivation. Returns: what each step touched.
-- Errors: GR002 no such evaluation; GR005 no such scope.
-- Execute: server, operator
create or replace function graph.repair_build_graph(p_evaluation bigint, p_scope text)
  returns table (step text, touched bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_closure bigint[];
  v_thawed bigint[];
  v_completed bigint[];
  v_released bigint[];
  v_failed bigint[];
  v_adopted bigint[];
  v_promoted bigint[];
  v_need record;
begin
  perform graph.take_turn();
  if not exists (select from gradient.evaluation e where e.id = p_evaluation) then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  v_closure := graph.evaluation_closure(p_evaluation);

  v_thawed := graph.requeue_failed_closure(p_evaluation, v_closure, p_scope);
  select r.completed, r.released into v_completed, v_released
  from graph.repair_cached_shared_builds_for_eval(v_closure) as r;
  v_failed := graph.repair_dependency_failed(p_evaluation, v_closure);
  v_need := graph.update_need(v_thawed || v_completed || v_failed);
  perform graph.settle_need(v_need.gained, v_need.lost);
  v_adopted := graph.adopt_pending_closure(p_evaluation);
  v_promoted := graph.promote_closure(v_closure || v_released);
  perform graph.check_evaluations_done(array(
    select distinct j.evaluation
    from gradient.build_job j
    join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
    where j.derivation_build = any (v_completed || v_failed || v_need.lost || v_promoted)));

  return query values
    ('requeue_failed_closure', cardinality(v_thawed)::bigint),
    ('repair_cached_shared_builds_for_eval', cardinality(v_completed)::bigint),
    ('repair_dependency_failed', cardinality(v_failed)::bigint),
    ('adopt_pending_closure', cardinality(v_adopted)::bigint),
    ('promote_closure', cardinality(v_promoted)::bigint);
end
$fn$;

comment on function graph.repair_build_graph(bigint, text) is
  'Repairs the graph below p_evaluation in five steps and returns what each touched. p_scope: eval (a walk ended), unstick (nothing can start), retry (a user asks: everything thaws). Errors GR002, GR005.';
