-- Step 4 of the repair: names for the evaluation every open shared build that its open named ones
-- want, so that nothing it waits for is nobody's.
-- Locks: the turn. Returns: the adopted shared builds.
create or replace function graph.adopt_pending_closure(p_evaluation bigint)
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_adopted bigint[];
begin
  perform graph.take_turn();
  with recursive reached (id) as (
    select b.derivation
    from gradient.build_job j
    join gradient.derivation_build b on b.derivation = j.derivation_build
    where j.evaluation = p_evaluation and b.wanted and graph.is_open(b.fetchable, b.status)
    union
    select c.derivation
    from reached r
    join gradient.derivation_build p on p.derivation = r.id
    join gradient.derivation pd on pd.id = r.id
    join gradient.derivation_dependency e on e.derivation = r.id
    join gradient.derivation_build c on c.derivation = e.dependency
    where graph.is_open(c.fetchable, c.status)
      and (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))
  ), adopted as (
    insert into gradient.build_job (evaluation, derivation_build, created_at)
    select p_evaluation, r.id, gradient.current_time()
    from reached r
    order by r.id
    on conflict (evaluation, derivation_build) do nothing
    returning derivation_build
  )
  select coalesce(array_agg(a.derivation_build), '{}') into v_adopted from adopted a;
  perform graph.sync_ready(v_adopted);
  return v_adopted;
end
$fn$;

comment on function graph.adopt_pending_closure(bigint) is
  'Repair step 4: names for p_evaluation every open shared build that its open named ones want. Returns those adopted.';
