-- The half of update_need that a growing graph needs: new edges, entry points and builders can only
-- add to what is wanted. Walks down from the roots over what was not wanted before, so that its cost
-- is what changed.
-- Locks: under the turn. Returns: the shared builds newly wanted.
create or replace function graph.gain_need(p_roots bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_gained bigint[];
begin
  if cardinality(p_roots) is null or cardinality(p_roots) = 0 then
    return '{}';
  end if;
  with recursive gained (id) as (
    (
      select b.derivation
      from gradient.derivation_build b
      where b.derivation = any (p_roots)
        and not b.wanted and graph.is_open(b.fetchable, b.status)
        and (
          b.derivation in (select s.derivation from graph.need_seeds(p_roots) s)
          or exists (
            select
            from gradient.derivation_dependency e
            join gradient.derivation_build p on p.derivation = e.derivation
            join gradient.derivation pd on pd.id = e.derivation
            where e.dependency = b.derivation and p.wanted and graph.is_open(p.fetchable, p.status)
              and (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))))
      union
      select c.derivation
      from gradient.derivation_build p
      join gradient.derivation pd on pd.id = p.derivation
      join gradient.derivation_dependency e on e.derivation = p.derivation
      join gradient.derivation_build c on c.derivation = e.dependency
      where p.derivation = any (p_roots)
        and p.wanted and graph.is_open(p.fetchable, p.status)
        and (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))
        and not c.wanted and graph.is_open(c.fetchable, c.status)
    )
    union
    select c.derivation
    from gained g
    join gradient.derivation_build p on p.derivation = g.id
    join gradient.derivation pd on pd.id = g.id
    join gradient.derivation_dependency e on e.derivation = g.id
    join gradient.derivation_build c on c.derivation = e.dependency
    where (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))
      and not c.wanted and graph.is_open(c.fetchable, c.status)
  )
  select coalesce(array_agg(g.id), '{}') into v_gained from gained g;

  update gradient.derivation_build b set wanted = true where b.derivation = any (v_gained);
  return v_gained;
end
$fn$;

comment on function graph.gain_need(bigint[]) is
  'Marks wanted what p_roots, having gained edges or entry points, newly want, and everything below. Returns the newly wanted shared builds.';
