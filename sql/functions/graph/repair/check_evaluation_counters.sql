-- Step of the consistency check: the counters of evaluations in flight, with what the ledger adds to them,
-- against the shared builds that they name.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_evaluation_counters(p_after bigint, p_limit integer, out drift bigint, out last bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_ids bigint[];
  v_stored bigint[];
  v_right bigint[];
  v_counters text[];
begin
  drift := 0;
  select max(r.id) into last
  from (select x.id as id from gradient.evaluation x where x.id > p_after and graph.is_active(x.status) order by x.id limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    select array_agg(w.id order by w.id, w.counter), array_agg(w.stored order by w.id, w.counter),
      array_agg(w.counted order by w.id, w.counter), array_agg(w.counter order by w.id, w.counter)
    into v_ids, v_stored, v_right, v_counters
    from (
      select e.id, k.counter, k.stored, k.counted
      from gradient.evaluation e
      cross join lateral (
        select count(b.derivation) as named,
          count(*) filter (where graph.blocks_evaluation(b.status, b.wanted)) as active,
          count(*) filter (where graph.failed_for_verdict(b.status)) as failed,
          count(*) filter (where b.status = 'Queued') as queued,
          count(*) filter (where b.status = 'Building') as building
        from gradient.build_job j
        join gradient.derivation_build b on b.derivation = j.derivation_build
        where j.evaluation = e.id
      ) as c
      cross join lateral (
        select coalesce(sum(l.named), 0) as named, coalesce(sum(l.active), 0) as active,
          coalesce(sum(l.failed), 0) as failed, coalesce(sum(l.queued), 0) as queued,
          coalesce(sum(l.building), 0) as building
        from gradient.evaluation_shared_build_delta l
        where l.evaluation = e.id
      ) as l
      cross join lateral (values
        ('named_shared_builds', e.named_shared_builds + l.named, c.named),
        ('active_shared_builds', e.active_shared_builds + l.active, c.active),
        ('failed_shared_builds', e.failed_shared_builds + l.failed, c.failed),
        ('queued_shared_builds', e.queued_shared_builds + l.queued, c.queued),
        ('building_shared_builds', e.building_shared_builds + l.building, c.building)
      ) as k (counter, stored, counted)
      where e.id > p_after and e.id <= last and graph.is_active(e.status)
    ) as w
    where w.stored <> w.counted;
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  perform graph.recount_evaluations(array(select distinct u.id from unnest(v_ids) as u (id)));
  drift := cardinality(v_ids);
  insert into gradient.drift (at, counter, evaluation, stored, recounted, context)
  select gradient.current_time(), u.counter, u.id, u.stored, u.counted, 'consistency_check'
  from unnest(v_counters, v_ids, v_stored, v_right) as u (counter, id, stored, counted);
end
$fn$;

comment on function graph.check_evaluation_counters(bigint, integer) is
  'Consistency check of evaluation counters: p_limit evaluations in flight after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
