-- Moves unwalked_inputs of everything above derivations whose subtree became recorded (-1) or
-- stopped being recorded (+1), all levels in one call. Only flipped rows spread.
-- Locks: the derivation rows of each level, by id (the turn stands for them). Returns: nothing.
create or replace function graph.ripple_recorded(p_gained bigint[], p_lost bigint[])
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
  set work_mem = '64MB'
as $fn$
declare
  v_gained bigint[] := coalesce(p_gained, '{}');
  v_lost bigint[] := coalesce(p_lost, '{}');
  v_ids bigint[] := '{}';      -- the rows that move, and by how much so far
  v_moves integer[] := '{}';
  v_below bigint[];
  v_stored bigint[];
  v_recounted bigint[];
begin
  loop
    exit when cardinality(v_gained) = 0 and cardinality(v_lost) = 0;

    if not graph.turn_held() then
      perform
      from gradient.derivation d
      where d.id in (
        select e.derivation from gradient.derivation_dependency e
        where e.dependency = any (v_gained || v_lost) and e.kind <> 'Runtime')
      order by d.id
      for no key update;
    end if;

    select
      coalesce(array_agg(m.id), '{}'),
      coalesce(array_agg(m.before + m.move), '{}'),
      coalesce(array_agg(m.id) filter (
        where graph.recorded(d.walked, d.drv_present, d.unwalked_inputs + m.before + m.move)
          and not graph.recorded(d.walked, d.drv_present, d.unwalked_inputs + m.before)), '{}'),
      coalesce(array_agg(m.id) filter (
        where graph.recorded(d.walked, d.drv_present, d.unwalked_inputs + m.before)
          and not graph.recorded(d.walked, d.drv_present, d.unwalked_inputs + m.before + m.move)), '{}')
    into v_ids, v_moves, v_gained, v_lost
    from (
      select u.id, sum(u.before)::integer as before, sum(u.move)::integer as move
      from (
        select s.id, s.before, 0 from unnest(v_ids, v_moves) as s (id, before)
        union all
        select e.derivation, 0, f.move
        from (select unnest(v_gained), -1 union all select unnest(v_lost), 1) as f (id, move)
        join gradient.derivation_dependency e on e.dependency = f.id and e.kind <> 'Runtime'
      ) as u (id, before, move)
      group by u.id
    ) as m
    left join gradient.derivation d on d.id = m.id and m.move <> 0;
  end loop;

  -- A row that many levels reach, as the parent of a whole closure is, is written once.
  with moved as (
    update gradient.derivation d
    set unwalked_inputs = d.unwalked_inputs + m.move
    from unnest(v_ids, v_moves) as m (id, move)
    where d.id = m.id and m.move <> 0
    returning d.id, d.unwalked_inputs as after
  )
  select array_agg(m.id), array_agg(m.after) into v_below, v_stored
  from moved m where m.after < 0;
  if v_below is not null then
    v_recounted := graph.recount_unwalked_inputs(v_below);
    perform graph.report_drift('unwalked_inputs', v_below, v_stored, v_recounted, 'ripple_recorded');
  end if;
end
$fn$;

comment on function graph.ripple_recorded(bigint[], bigint[]) is
  'Spreads that derivations'' subtrees became recorded (p_gained) or stopped being so (p_lost) to the unwalked_inputs of everything above them.';
