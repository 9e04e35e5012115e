-- Step of the consistency check: drv_present says whether the .drv of a derivation is in the cache.
-- Does not spread: graph.check_unwalked_inputs counts next.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_drv_present(p_after bigint, p_limit integer, out drift bigint, out last bigint)
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
  from (select x.id as id from gradient.derivation x where x.id > p_after order by x.id limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    select array_agg(d.id order by d.id), array_agg(d.drv_present::integer order by d.id),
      array_agg((not d.drv_present)::integer order by d.id)
    into v_ids, v_stored, v_right
    from gradient.derivation d
    left join gradient.cached_path c on c.hash = d.hash
    where d.id > p_after and d.id <= last and d.drv_present <> (c.id is not null);
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  update gradient.derivation d set drv_present = not d.drv_present where d.id = any (v_ids);
  drift := cardinality(v_ids);
  perform graph.report_drift('drv_present', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_drv_present(bigint, integer) is
  'Consistency check of drv_present: p_limit derivations after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
