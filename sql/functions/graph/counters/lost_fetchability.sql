-- Takes the mark from candidates whose outputs can no longer be fetched, counts their parents'
-- blocking_deps up and un-queues those of them that are queued but not handed out.
-- Locks: keys of the candidates exclusive before the edges into them are read; rows by derivation.
-- Returns: the flipped rows, and the parents that left the queue.
create or replace function graph.lost_fetchability(
  p_candidates bigint[], out flipped bigint[], out unqueued bigint[])
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_parents bigint[];
  v_moves integer[];
begin
  flipped := '{}';
  unqueued := '{}';
  if cardinality(p_candidates) is null or cardinality(p_candidates) = 0 then
    return;
  end if;
  perform graph.lock_shared_builds(null, p_candidates);
  perform from gradient.derivation_build b where b.derivation = any (p_candidates) order by b.derivation for no key update;

  perform set_config('gradient.counters_only', 'on', true);
  with moved as (
    update gradient.derivation_build b
    set fetchable = false
    where b.derivation = any (p_candidates) and b.fetchable
      and not (graph.succeeded(b.status)
               and b.derivation in (select c.derivation from graph.complete_closure(p_candidates) c))
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
    update gradient.derivation_build b
    set blocking_deps = b.blocking_deps + m.move
    from unnest(v_parents, v_moves) as m (id, move)
    where b.derivation = m.id;
  end if;
  perform set_config('gradient.counters_only', 'off', true);

  if v_parents is not null then
    unqueued := graph.unpromote(v_parents);
  end if;
end
$fn$;

comment on function graph.lost_fetchability(bigint[]) is
  'Takes the fetchable mark from those of p_candidates that no longer deserve it, counts blocking_deps of their parents up, and un-queues parents that may not start any more. Returns the flipped rows and the parents un-queued.';
