-- Marks those candidates fetchable that ended well with a complete closure, and takes them off
-- what holds their parents back. Only rows whose mark flipped spread.
-- Locks: keys of the candidates exclusive before the edges into them are read; rows by derivation.
-- Returns: the flipped rows, and the parents that no build input holds back any more.
create or replace function graph.became_fetchable(
  p_candidates bigint[], out flipped bigint[], out released bigint[])
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_parents bigint[];
  v_moves integer[];
  v_below bigint[];
  v_stored bigint[];
  v_recounted bigint[];
begin
  flipped := '{}';
  released := '{}';
  if cardinality(p_candidates) is null or cardinality(p_candidates) = 0 then
    return;
  end if;
  perform graph.lock_shared_builds(null, p_candidates);
  perform from gradient.derivation_build b where b.derivation = any (p_candidates) order by b.derivation for no key update;

  perform set_config('gradient.counters_only', 'on', true);
  with moved as (
    update gradient.derivation_build b
    set fetchable = true
    from graph.complete_closure(p_candidates) c
    where b.derivation = c.derivation and not b.fetchable and graph.succeeded(b.status)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into flipped from moved m;

  select array_agg(m.derivation order by m.derivation), array_agg(m.move order by m.derivation)
  into v_parents, v_moves
  from (
    select e.derivation, count(*)::integer as move
    from unnest(flipped) as u (id)
    join gradient.derivation_dependency e on e.dependency = u.id and e.kind <> 'Runtime'
    group by e.derivation
  ) as m;

  if v_parents is not null then
    if not graph.turn_held() then
      perform from gradient.derivation_build b where b.derivation = any (v_parents) order by b.derivation for no key update;
    end if;
    with moved as (
      update gradient.derivation_build b
      set blocking_deps = b.blocking_deps - m.move
      from unnest(v_parents, v_moves) as m (id, move)
      where b.derivation = m.id
      returning b.derivation, b.blocking_deps as after
    )
    select coalesce(array_agg(m.derivation) filter (where m.after = 0), '{}'),
           array_agg(m.derivation) filter (where m.after < 0),
           array_agg(m.after) filter (where m.after < 0)
    into released, v_below, v_stored
    from moved m;
    if v_below is not null then
      v_recounted := graph.seed_blocking_deps(v_below);
      perform graph.report_drift('blocking_deps', v_below, v_stored, v_recounted, 'became_fetchable');
      released := released || v_below;
    end if;
  end if;
  perform set_config('gradient.counters_only', 'off', true);
end
$fn$;

comment on function graph.became_fetchable(bigint[]) is
  'Marks those of p_candidates fetchable that are Completed or Substituted with a complete closure, and counts blocking_deps of their parents down. Returns the flipped rows and the parents now held back by no build input.';
