-- Writes blocking_deps of the given shared builds as an absolute count of the build inputs that
-- have no shared build or are not marked fetchable. A seed runs before the flips of its own call,
-- which then count it down.
-- Locks: keys of the inputs shared; rows by derivation. Returns: the counts in the order of p_ids.
create or replace function graph.seed_blocking_deps(p_ids bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_counts bigint[];
begin
  if cardinality(p_ids) is null or cardinality(p_ids) = 0 then
    return '{}';
  end if;
  if not graph.turn_held() then
    perform graph.lock_shared_builds(
      (select array_agg(distinct e.dependency)
       from gradient.derivation_dependency e
       where e.derivation = any (p_ids) and e.kind <> 'Runtime'),
      null);
    perform from gradient.derivation_build b where b.derivation = any (p_ids) order by b.derivation for no key update;
  end if;

  perform set_config('gradient.counters_only', 'on', true);
  with counted as (
    select u.id, u.n, count(e.dependency) filter (where not coalesce(i.fetchable, false)) as blocking
    from unnest(p_ids) with ordinality as u (id, n)
    left join gradient.derivation_dependency e on e.derivation = u.id and e.kind <> 'Runtime'
    left join gradient.derivation_build i on i.derivation = e.dependency
    group by u.id, u.n
  ), written as (
    update gradient.derivation_build b set blocking_deps = c.blocking
    from counted c
    where b.derivation = c.id and b.blocking_deps <> c.blocking
  )
  select array_agg(c.blocking order by c.n) into v_counts from counted c;
  perform set_config('gradient.counters_only', 'off', true);
  return v_counts;
end
$fn$;

comment on function graph.seed_blocking_deps(bigint[]) is
  'Counts blocking_deps of p_ids anew from the edges and writes them. Returns the counts in the order of p_ids.';
