-- Moves missing_runtime_deps of everything above shared builds whose closure became complete (-1)
-- or incomplete (+1), all levels and both directions in one call. Only flipped rows spread.
-- Locks: keys of the flipped rows exclusive before their edges are read; rows of each level by
-- derivation. Returns: every shared build that flipped, the given ones included.
create or replace function graph.ripple_complete(
  p_gained bigint[], p_lost bigint[], out all_gained bigint[], out all_lost bigint[])
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_gained bigint[] := coalesce(p_gained, '{}');
  v_lost bigint[] := coalesce(p_lost, '{}');
  v_parents bigint[];
  v_moves integer[];
  v_up bigint[];
  v_down bigint[];
  v_below bigint[];
  v_stored bigint[];
  v_recounted bigint[];
begin
  all_gained := v_gained;
  all_lost := v_lost;
  loop
    exit when cardinality(v_gained) = 0 and cardinality(v_lost) = 0;
    perform graph.lock_shared_builds(null, v_gained || v_lost);

    select array_agg(m.derivation order by m.derivation), array_agg(m.move order by m.derivation)
    into v_parents, v_moves
    from (
      select e.derivation, sum(u.move)::integer as move
      from (select unnest(v_gained), -1 union all select unnest(v_lost), 1) as u (id, move)
      join gradient.derivation_dependency e on e.dependency = u.id and e.kind <> 'Build'
      group by e.derivation
      having sum(u.move) <> 0
    ) as m;
    exit when v_parents is null;

    if not graph.turn_held() then
      perform from gradient.derivation_build b where b.derivation = any (v_parents) order by b.derivation for no key update;
    end if;

    perform set_config('gradient.counters_only', 'on', true);
    with moved as (
      update gradient.derivation_build b
      set missing_runtime_deps = b.missing_runtime_deps + m.move
      from unnest(v_parents, v_moves) as m (id, move)
      where b.derivation = m.id
      returning b.derivation, b.missing_runtime_deps as after, m.move
    )
    select
      array_agg(m.derivation) filter (where m.after = 0 and m.move < 0),
      array_agg(m.derivation) filter (where m.after = m.move and m.move > 0),
      array_agg(m.derivation) filter (where m.after < 0),
      array_agg(m.after) filter (where m.after < 0)
    into v_up, v_down, v_below, v_stored
    from moved m;
    perform set_config('gradient.counters_only', 'off', true);

    if v_below is not null then
      v_recounted := graph.recount_missing_runtime_deps(v_below);
      perform graph.report_drift('missing_runtime_deps', v_below, v_stored, v_recounted, 'ripple_complete');
    end if;

    v_gained := array(select p.derivation from graph.present(coalesce(v_up, '{}')) p);
    v_lost := array(select p.derivation from graph.present(coalesce(v_down, '{}')) p);
    all_gained := all_gained || v_gained;
    all_lost := all_lost || v_lost;
  end loop;
end
$fn$;

comment on function graph.ripple_complete(bigint[], bigint[]) is
  'Spreads that closures became complete (p_gained) or incomplete (p_lost) to the missing_runtime_deps of everything above. Returns every shared build that flipped, the given ones included.';
