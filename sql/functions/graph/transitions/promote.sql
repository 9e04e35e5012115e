-- Queues every candidate that is Created and passes the queue conditions.
-- Locks: rows by derivation, before the conditions are read. Returns: the queued shared builds.
create or replace function graph.promote(p_candidates bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
  set enable_seqscan = off
as $fn$
declare
  v_promoted bigint[];
begin
  if cardinality(p_candidates) is null or cardinality(p_candidates) = 0 then
    return '{}';
  end if;
  perform from gradient.derivation_build b
  where b.derivation = any (p_candidates) and b.status = 'Created'
  order by b.derivation for no key update;

  -- Looked up row by row: where the statistics still call a freshly filled table empty, a join
  -- here is planned as a product of both tables.
  with moved as (
    update gradient.derivation_build b
    set status = 'Queued',
        queued_at = coalesce(b.queued_at, gradient.current_time()),
        updated_at = gradient.current_time()
    where b.derivation = any (p_candidates) and b.status = 'Created'
      and (select graph.gates(d.walked, b.wanted, b.cache_available, b.probed, b.blocking_deps, d.drv_present, b.missing_sources)
           from gradient.derivation d where d.id = b.derivation)
      and (select true from gradient.build_job j where j.derivation_build = b.derivation limit 1)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation order by m.derivation), '{}') into v_promoted from moved m;
  perform graph.sync_ready(v_promoted);
  return v_promoted;
end
$fn$;

comment on function graph.promote(bigint[]) is
  'Queues those of p_candidates that are Created and pass the queue conditions. Returns them.';
