-- Moves unwalked_inputs of everything above derivations whose subtree became recorded (-1) or
-- stopped being recorded (+1), all levels in one call. Only flipped rows spread.
-- Locks: the derivation rows of each level, by id (the turn stands for them). Returns: nothing.
create or replace function graph.ripple_recorded(p_gained bigint[], p_lost bigint[])
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_gained bigint[] := coalesce(p_gained, '{}');
  v_lost bigint[] := coalesce(p_lost, '{}');
  v_parents bigint[];
  v_moves integer[];
  v_below bigint[];
  v_stored bigint[];
  v_recounted bigint[];
begin
  loop
    exit when cardinality(v_gained) = 0 and cardinality(v_lost) = 0;

    select array_agg(m.derivation order by m.derivation), array_agg(m.move order by m.derivation)
    into v_parents, v_moves
    from (
      select e.derivation, sum(u.move)::integer as move
      from (select unnest(v_gained), -1 union all select unnest(v_lost), 1) as u (id, move)
      join gradient.derivation_dependency e on e.dependency = u.id and e.kind <> 'Runtime'
      group by e.derivation
      having sum(u.move) <> 0
    ) as m;
    exit when v_parents is null;

    if not graph.turn_held() then
      perform from gradient.derivation d where d.id = any (v_parents) order by d.id for no key update;
    end if;

    with moved as (
      update gradient.derivation d
      set unwalked_inputs = d.unwalked_inputs + m.move
      from unnest(v_parents, v_moves) as m (id, move)
      where d.id = m.id
      returning d.id, d.walked, d.drv_present, d.unwalked_inputs as after, m.move
    )
    select
      coalesce(array_agg(m.id) filter (
        where graph.recorded(m.walked, m.drv_present, m.after)
          and not graph.recorded(m.walked, m.drv_present, m.after - m.move)), '{}'),
      coalesce(array_agg(m.id) filter (
        where graph.recorded(m.walked, m.drv_present, m.after - m.move)
          and not graph.recorded(m.walked, m.drv_present, m.after)), '{}'),
      array_agg(m.id) filter (where m.after < 0),
      array_agg(m.after) filter (where m.after < 0)
    into v_gained, v_lost, v_below, v_stored
    from moved m;

    if v_below is not null then
      v_recounted := graph.recount_unwalked_inputs(v_below);
      perform graph.report_drift('unwalked_inputs', v_below, v_stored, v_recounted, 'ripple_recorded');
    end if;
  end loop;
end
$fn$;

comment on function graph.ripple_recorded(bigint[], bigint[]) is
  'Spreads that derivations'' subtrees became recorded (p_gained) or stopped being so (p_lost) to the unwalked_inputs of everything above them.';
