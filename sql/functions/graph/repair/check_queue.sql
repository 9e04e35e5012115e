-- Step of the consistency check: what is Queued though a gate is closed, and not handed out, leaves the
-- queue; what is Created though every gate is open is queued.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_queue(p_after bigint, p_limit integer, out drift bigint, out last bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_ids bigint[];
  v_stored bigint[];
  v_right bigint[];
begin
  drift := 0;
  select max(r.id) into last
  from (select x.derivation as id from gradient.derivation_build x where x.derivation > p_after order by x.derivation limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    select array_agg(b.derivation order by b.derivation),
      array_agg((b.status = 'Queued')::integer order by b.derivation),
      array_agg((b.status <> 'Queued')::integer order by b.derivation)
    into v_ids, v_stored, v_right
    from gradient.derivation_build b
    join gradient.derivation d on d.id = b.derivation
    where b.derivation > p_after and b.derivation <= last
      and b.status in ('Created', 'Queued')
      and (b.status = 'Queued') <> (
        graph.gates(d.walked, b.wanted, b.cache_available, b.probed, b.blocking_deps, d.drv_present, b.missing_sources)
        and exists (select from gradient.build_job j where j.derivation_build = b.derivation))
      and (b.status = 'Created' or not exists (
        select from gradient.dispatched_job o
        where o.job = 'build:' || b.derivation and o.finished_at is null));
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  perform graph.unpromote(v_ids);
  perform graph.promote(v_ids);
  drift := cardinality(v_ids);
  perform graph.report_drift('queue', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_queue(bigint, integer) is
  'Consistency check of the queue: p_limit shared builds after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
