-- Writes missing_runtime_deps of the given shared builds as an absolute count, and spreads what
-- became complete, or stopped being so, to everything above. An input without a shared build is
-- not counted.
-- p_fresh: those of them that were not complete before, whatever their row says now, because an
-- output of theirs has just arrived or their row is new.
-- Locks: keys of the inputs shared and of the rows exclusive; rows by derivation.
-- Returns: who gained and who lost a complete closure.
create or replace function graph.seed_missing_runtime_deps(
  p_ids bigint[], p_fresh bigint[], out gained bigint[], out lost bigint[])
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_before bigint[];
  v_after bigint[];
  v_spread record;
begin
  gained := '{}';
  lost := '{}';
  if cardinality(p_ids) is null or cardinality(p_ids) = 0 then
    return;
  end if;

  if not graph.turn_held() then
    perform graph.lock_shared_builds(
      (select array_agg(distinct e.dependency)
       from gradient.derivation_dependency e
       where e.derivation = any (p_ids) and e.kind <> 'Build'),
      p_ids);
    perform from gradient.derivation_build b where b.derivation = any (p_ids) order by b.derivation for no key update;
  end if;

  select coalesce(array_agg(c.derivation), '{}') into v_before
  from graph.complete_closure(p_ids) c
  where c.derivation not in (select unnest(p_fresh));

  with inputs as (
    select e.derivation, e.dependency
    from unnest(p_ids) as u (id)
    join gradient.derivation_dependency e on e.derivation = u.id and e.kind <> 'Build'
    join gradient.derivation_build i on i.derivation = e.dependency
  ), complete as (
    select c.derivation
    from graph.complete_closure((select array_agg(distinct i.dependency) from inputs i)) c
    where c.derivation not in (select unnest(p_ids))
    union
    select unnest(v_before)
  ), counted as (
    select u.id, count(i.dependency) filter (where c.derivation is null) as missing
    from unnest(p_ids) as u (id)
    left join inputs i on i.derivation = u.id
    left join complete c on c.derivation = i.dependency
    group by u.id
  )
  update gradient.derivation_build b
  set missing_runtime_deps = c.missing
  from counted c
  where b.derivation = c.id and b.missing_runtime_deps <> c.missing;

  select coalesce(array_agg(c.derivation), '{}') into v_after from graph.complete_closure(p_ids) c;

  select array(select unnest(v_after) except select unnest(v_before)),
         array(select unnest(v_before) except select unnest(v_after))
  into gained, lost;

  v_spread := graph.ripple_complete(gained, lost);
  gained := v_spread.all_gained;
  lost := v_spread.all_lost;
end
$fn$;

comment on function graph.seed_missing_runtime_deps(bigint[], bigint[]) is
  'Counts missing_runtime_deps of p_ids anew and spreads the flips. p_fresh: rows that were not complete before, whatever they say now. Returns all shared builds whose closure became complete (gained) or incomplete (lost).';
