-- Step 2 of the repair: completes shared builds whose every output is in the cache although their
-- status says otherwise, and releases what waits for them. A build that is handed out is left to its
-- worker's report.
-- Locks: the turn; rows by derivation. Returns: the completed shared builds, and what they released.
create or replace function graph.repair_cached_shared_builds_for_eval(
  p_closure bigint[], out completed bigint[], out released bigint[])
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
begin
  perform graph.take_turn();
  perform from gradient.derivation_build b
  where b.derivation = any (p_closure) and not graph.succeeded(b.status)
  order by b.derivation for no key update;
  with moved as (
    update gradient.derivation_build b
    set status = 'Completed', retry_at = null, failed_by = null, updated_at = gradient.current_time()
    from graph.present(p_closure) p
    where b.derivation = p.derivation and not graph.succeeded(b.status)
      and not exists (
        select from gradient.dispatched_job o
        where o.job = 'build:' || b.derivation and o.finished_at is null)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into completed from moved m;
  perform graph.sync_ready(completed);
  select f.released into released from graph.became_fetchable(completed) as f;
end
$fn$;

comment on function graph.repair_cached_shared_builds_for_eval(bigint[]) is
  'Repair step 2: completes those shared builds of p_closure whose outputs all lie in the cache, and counts their parents down. Returns them and the parents released.';
