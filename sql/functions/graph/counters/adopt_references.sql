-- Runtime edges from what the cache knows: a derivation whose output refers to another's output
-- needs it at run time. Reads both directions, so that it does not matter which end was recorded
-- first. A reference to a path that the derivation makes itself adds nothing, also where another
-- derivation makes the same path: twins do not wait for each other.
-- Locks: none beyond the inserted edges. Returns: the derivations that gained an edge.
create or replace function graph.adopt_references(p_derivations bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_names text[];
  v_grown bigint[];
begin
  if cardinality(p_derivations) is null or cardinality(p_derivations) = 0 then
    return '{}';
  end if;
  v_names := array(
    select t.hash || '-' || t.package
    from unnest(p_derivations) as u (id)
    join gradient.derivation_output t on t.derivation = u.id);

  with referring as (
    select o.derivation, left(r.name, 32) as hash
    from unnest(p_derivations) as u (id)
    join gradient.derivation_output o on o.derivation = u.id
    join gradient.cached_path c on c.id = o.cached_path
    cross join lateral unnest(c."references") as r (name)
    union
    select o.derivation, left(r.name, 32)
    from gradient.cached_path c
    cross join lateral unnest(c."references") as r (name)
    join gradient.derivation_output o on o.cached_path = c.id
    where c."references" && v_names and r.name in (select unnest(v_names))
  ), edges as (
    select distinct r.derivation, t.derivation as dependency
    from referring r
    join gradient.derivation_output t on t.hash = r.hash
    where t.derivation <> r.derivation
      and not exists (
        select from gradient.derivation_output own
        where own.derivation = r.derivation and own.hash = r.hash)
  ), grown as (
    insert into gradient.derivation_dependency as e (derivation, dependency, kind)
    select n.derivation, n.dependency, 'Runtime'
    from edges n
    where not exists (
      select from gradient.derivation_dependency k
      where k.derivation = n.derivation and k.dependency = n.dependency and k.kind <> 'Build')
    order by 1, 2
    on conflict (derivation, dependency) do update set kind = 'Both' where e.kind = 'Build'
    returning e.derivation
  )
  select coalesce(array_agg(distinct g.derivation), '{}') into v_grown from grown g;
  return v_grown;
end
$fn$;

comment on function graph.adopt_references(bigint[]) is
  'Adds the runtime edges that the references of cached outputs imply, from and to p_derivations. Returns the derivations that gained one.';
