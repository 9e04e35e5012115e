-- Step of the consistency check: missing_sources is the number of plain sources not in the cache.
-- Does not spread: graph.check_queue looks at the gates.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_missing_sources(p_after bigint, p_limit integer, out drift bigint, out last bigint)
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
    select array_agg(b.derivation order by b.derivation), array_agg(b.missing_sources order by b.derivation),
      array_agg(c.right_count order by b.derivation)
    into v_ids, v_stored, v_right
    from gradient.derivation_build b
    cross join lateral (
      select count(*)
      from gradient.derivation_input_source s
      left join gradient.cached_path p on p.hash = s.hash
      where s.derivation = b.derivation and p.id is null
    ) as c (right_count)
    where b.derivation > p_after and b.derivation <= last and b.missing_sources <> c.right_count;
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  perform set_config('gradient.counters_only', 'on', true);
  update gradient.derivation_build b set missing_sources = r.right_count
  from unnest(v_ids, v_right) as r (id, right_count)
  where b.derivation = r.id;
  perform set_config('gradient.counters_only', 'off', true);
  drift := cardinality(v_ids);
  perform graph.report_drift('missing_sources', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_missing_sources(bigint, integer) is
  'Consistency check of missing_sources: p_limit shared builds after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
