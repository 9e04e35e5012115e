-- Step of the consistency check: missing_runtime_deps against the inputs' rows. A difference anywhere
-- makes it count the whole graph anew, from what is present, which is the ripple to its end.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_missing_runtime_deps(p_after bigint, p_limit integer, out drift bigint, out last bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
  set work_mem = '64MB'
as $fn$
declare
  v_ids bigint[];
  v_stored bigint[];
  v_right bigint[];
begin
  drift := 0;
  select max(r.id) into last
  from (select x.derivation as id from gradient.derivation_build x where x.derivation > p_after order by x.derivation limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    with inputs as (
      select e.derivation, e.dependency
      from gradient.derivation_dependency e
      join gradient.derivation_build i on i.derivation = e.dependency
      where e.derivation > p_after and e.derivation <= last and e.kind <> 'Build'
    ), complete as (
      select c.derivation
      from graph.complete_closure((select array_agg(distinct i.dependency) from inputs i)) c
    ), counted as (
      select i.derivation, count(*) as missing
      from inputs i
      where i.dependency not in (select c.derivation from complete c)
      group by i.derivation
    )
    select array_agg(b.derivation) into v_ids
    from gradient.derivation_build b
    left join counted c on c.derivation = b.derivation
    where b.derivation > p_after and b.derivation <= last
      and b.missing_runtime_deps <> coalesce(c.missing, 0);
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  with recursive present as materialized (
    select o.derivation
    from gradient.derivation_output o
    group by o.derivation
    having bool_and(o.cached_path is not null)
  ), incomplete (id) as (
    select b.derivation
    from gradient.derivation_build b
    where b.derivation not in (select p.derivation from present p)
    union
    select b.derivation
    from incomplete n
    join gradient.derivation_dependency e on e.dependency = n.id and e.kind <> 'Build'
    join gradient.derivation_build b on b.derivation = e.derivation
  ), counted as (
    select e.derivation, count(*) as missing
    from incomplete n
    join gradient.derivation_dependency e on e.dependency = n.id and e.kind <> 'Build'
    group by e.derivation
  )
  select array_agg(b.derivation order by b.derivation), array_agg(b.missing_runtime_deps order by b.derivation),
    array_agg(coalesce(c.missing, 0) order by b.derivation)
  into v_ids, v_stored, v_right
  from gradient.derivation_build b
  left join counted c on c.derivation = b.derivation
  where b.missing_runtime_deps <> coalesce(c.missing, 0);
  perform set_config('gradient.counters_only', 'on', true);
  update gradient.derivation_build b set missing_runtime_deps = r.missing
  from unnest(v_ids, v_right) as r (id, missing)
  where b.derivation = r.id;
  perform set_config('gradient.counters_only', 'off', true);
  last := null;
  drift := cardinality(v_ids);
  perform graph.report_drift('missing_runtime_deps', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_missing_runtime_deps(bigint, integer) is
  'Consistency check of missing_runtime_deps: p_limit shared builds after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
