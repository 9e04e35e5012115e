-- Takes every candidate off the queue that is queued, not handed out, and no longer passes the
-- queue conditions.
-- Locks: rows by derivation, before the conditions are read. Returns: the un-queued shared builds.
create or replace function graph.unpromote(p_candidates bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_unpromoted bigint[];
begin
  if cardinality(p_candidates) is null or cardinality(p_candidates) = 0 then
    return '{}';
  end if;
  perform from gradient.derivation_build b
  where b.derivation = any (p_candidates) and b.status = 'Queued'
  order by b.derivation for no key update;

  with moved as (
    update gradient.derivation_build b
    set status = 'Created', updated_at = gradient.current_time()
    from gradient.derivation d
    where b.derivation = any (p_candidates) and b.status = 'Queued' and d.id = b.derivation
      and not (
        graph.gates(d.walked, b.wanted, b.cache_available, b.probed, b.blocking_deps, d.drv_present, b.missing_sources)
        and exists (select from gradient.build_job j where j.derivation_build = b.derivation))
      and not exists (
        select from gradient.dispatched_job o
        where o.job = 'build:' || b.derivation and o.finished_at is null)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation order by m.derivation), '{}') into v_unpromoted from moved m;
  perform graph.sync_ready(v_unpromoted);
  return v_unpromoted;
end
$fn$;

comment on function graph.unpromote(bigint[]) is
  'Takes those of p_candidates off the queue that are queued, not handed out, and fail the queue conditions. Returns them.';
