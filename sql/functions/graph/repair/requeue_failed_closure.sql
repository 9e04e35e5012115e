-- Step 1 of the repair: thaws failed shared builds of the closure to Created with a fresh budget.
-- p_scope: "eval" (a walk has ended) thaws all but what its user aborted and, when the task says so,
-- lasting failures; "unstick" also leaves a builder's own failure alone; "retry" (a user asks) thaws
-- everything. What depends on something left alone is left alone too.
-- Locks: the turn; rows by derivation. Returns: the thawed shared builds. Errors: GR005 no such scope.
create or replace function graph.requeue_failed_closure(p_evaluation bigint, p_closure bigint[], p_scope text)
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_kept bigint[] := '{}';
  v_thawed bigint[];
begin
  perform graph.take_turn();
  if p_scope not in ('eval', 'unstick', 'retry') then
    raise exception using errcode = 'GR005',
      message = format('"%s" is no scope of a repair.', p_scope),
      hint = 'Scopes: eval, unstick, retry.';
  end if;
  if p_scope <> 'retry' then
    with recursive kept (id) as (
      select b.derivation
      from gradient.derivation_build b
      where b.derivation = any (p_closure)
        and b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
        and (
          exists (
            select from gradient.build_job j
            where j.evaluation = p_evaluation and j.derivation_build = b.derivation and j.aborted)
          or (b.status = 'FailedPermanent' and exists (
            select from gradient.evaluation e join gradient.task t on t.id = e.task
            where e.id = p_evaluation and not t.retry_failed_builds))
          or (p_scope = 'unstick' and b.status <> 'DependencyFailed' and exists (
            select from gradient.build_attempt a
            where a.derivation_build = b.derivation and a.outcome = 'Failed' and a.outcome_class = 'builder_failed')))
      union
      select b.derivation
      from kept k
      join gradient.derivation_dependency e on e.dependency = k.id
      join gradient.derivation_build b on b.derivation = e.derivation
      where b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
        and not b.cache_available
    )
    select coalesce(array_agg(k.id), '{}') into v_kept from kept k;
  end if;

  perform from gradient.derivation_build b
  where b.derivation = any (p_closure) and b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
  order by b.derivation for no key update;
  with moved as (
    update gradient.derivation_build b
    set status = 'Created', attempt = 0, failed_by = null, updated_at = gradient.current_time()
    where b.derivation = any (p_closure)
      and b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
      and b.derivation not in (select unnest(v_kept))
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_thawed from moved m;
  return v_thawed;
end
$fn$;

comment on function graph.requeue_failed_closure(bigint, bigint[], text) is
  'Repair step 1: thaws failed shared builds in p_closure (of p_evaluation) to Created. p_scope: eval, unstick or retry. Returns them. Error GR005: no such scope.';
