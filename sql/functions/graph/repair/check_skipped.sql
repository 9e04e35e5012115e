-- Step of the consistency check: what is Skipped though somebody wants it, or an entry point names it, is
-- Created; what is Created though nobody wants it, and every walk that names it has ended, is Skipped.
-- Queues nothing: graph.check_queue comes next.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_skipped(p_after bigint, p_limit integer, out drift bigint, out last bigint)
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
      array_agg((b.status = 'Skipped')::integer order by b.derivation),
      array_agg((b.status <> 'Skipped')::integer order by b.derivation)
    into v_ids, v_stored, v_right
    from gradient.derivation_build b
    cross join lateral (
      select exists (select from gradient.entry_point p where p.derivation = b.derivation) as entry_point
    ) as n
    where b.derivation > p_after and b.derivation <= last
      and ((b.status = 'Skipped' and (b.wanted or n.entry_point))
        or (b.status = 'Created' and not b.wanted and not n.entry_point
          and (
            select bool_or(e.status = 'Building') and bool_and(e.status = 'Building' or not graph.is_active(e.status))
            from gradient.build_job j
            join gradient.evaluation e on e.id = j.evaluation
            where j.derivation_build = b.derivation)));
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  perform from gradient.derivation_build b where b.derivation = any (v_ids) order by b.derivation for no key update;
  update gradient.derivation_build b
  set status = case when b.status = 'Skipped' then 'Created' else 'Skipped' end::gradient.build_status,
      attempt = 0, updated_at = gradient.current_time()
  where b.derivation = any (v_ids) and b.status in ('Skipped', 'Created');
  drift := cardinality(v_ids);
  perform graph.report_drift('skipped', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_skipped(bigint, integer) is
  'Consistency check of Skipped: p_limit shared builds after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
