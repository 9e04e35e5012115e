-- Writes missing_runtime_deps of the given shared builds as an absolute count, without a spread.
-- Locks: the derivation_build rows. Returns: the counts in the order of p_ids.
create or replace function graph.recount_missing_runtime_deps(p_ids bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_counts bigint[];
begin
  with inputs as (
    select e.derivation, e.dependency
    from unnest(p_ids) as u (id)
    join gradient.derivation_dependency e on e.derivation = u.id and e.kind <> 'Build'
    join gradient.derivation_build i on i.derivation = e.dependency
  ), complete as (
    select c.derivation
    from graph.complete_closure((select array_agg(distinct i.dependency) from inputs i)) c
  ), counted as (
    select u.id, u.n, count(i.dependency) filter (where c.derivation is null) as missing
    from unnest(p_ids) with ordinality as u (id, n)
    left join inputs i on i.derivation = u.id
    left join complete c on c.derivation = i.dependency
    group by u.id, u.n
  ), written as (
    update gradient.derivation_build b set missing_runtime_deps = c.missing
    from counted c
    where b.derivation = c.id and b.missing_runtime_deps <> c.missing
  )
  select array_agg(c.missing order by c.n) into v_counts from counted c;
  return v_counts;
end
$fn$;

comment on function graph.recount_missing_runtime_deps(bigint[]) is
  'Counts missing_runtime_deps of p_ids anew from the edges and writes them. Returns the counts in the order of p_ids.';
