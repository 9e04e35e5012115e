-- Brings "wanted" to its truth after the roots changed: within the open region below them, what an
-- entry point or a wanted parent from outside still reaches. Exact also where runtime references
-- form a circle.
-- Locks: under the turn; the roots' rows. Returns: the shared builds newly wanted, and no longer.
create or replace function graph.update_need(p_roots bigint[], out gained bigint[], out lost bigint[])
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_region bigint[];
  v_true bigint[];
begin
  gained := '{}';
  lost := '{}';
  if cardinality(p_roots) is null or cardinality(p_roots) = 0 then
    return;
  end if;
  perform from gradient.derivation_build b where b.derivation = any (p_roots) order by b.derivation for no key update;

  with recursive region (id, is_root) as (
    select unnest(p_roots), true
    union
    select e.dependency, false
    from region r
    join gradient.derivation_build p on p.derivation = r.id
    join gradient.derivation pd on pd.id = r.id
    join gradient.derivation_dependency e on e.derivation = r.id
    join gradient.derivation_build c on c.derivation = e.dependency
    where graph.is_open(c.fetchable, c.status)
      and (r.is_root or e.kind <> 'Build'
           or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))
  )
  select array_agg(distinct r.id) into v_region from region r;

  with recursive member (id) as materialized (
    select unnest(v_region)
  ), reached (id) as (
    select b.derivation
    from gradient.derivation_build b
    where b.derivation = any (v_region) and graph.is_open(b.fetchable, b.status)
      and (
        b.derivation in (select s.derivation from graph.need_seeds(v_region) s)
        or exists (
          select
          from gradient.derivation_dependency e
          join gradient.derivation_build p on p.derivation = e.derivation
          join gradient.derivation pd on pd.id = e.derivation
          where e.dependency = b.derivation and p.wanted and graph.is_open(p.fetchable, p.status)
            and (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))
            and e.derivation not in (select m.id from member m)))
    union
    select c.derivation
    from reached r
    join gradient.derivation_build p on p.derivation = r.id
    join gradient.derivation pd on pd.id = r.id
    join gradient.derivation_dependency e on e.derivation = r.id
    join gradient.derivation_build c on c.derivation = e.dependency
    where graph.is_open(c.fetchable, c.status)
      and (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available, p.status))
      and c.derivation in (select m.id from member m)
  )
  select coalesce(array_agg(r.id), '{}') into v_true from reached r;

  with moved as (
    update gradient.derivation_build b
    set wanted = not b.wanted
    where b.derivation = any (v_region)
      and b.wanted <> (b.derivation in (select unnest(v_true)))
    returning b.derivation, b.wanted
  )
  select coalesce(array_agg(m.derivation) filter (where m.wanted), '{}'),
         coalesce(array_agg(m.derivation) filter (where not m.wanted), '{}')
  into gained, lost
  from moved m;
end
$fn$;

comment on function graph.update_need(bigint[]) is
  'Recomputes "wanted" in the open region below p_roots after they changed. Returns the shared builds newly wanted (gained) and no longer wanted (lost).';
