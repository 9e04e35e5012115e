-- Fails everything that cannot be built any more because one build failed: upward over every kind of
-- edge, never into a passthrough, never past a build that is running or has ended.
-- Locks: under the turn; rows by derivation. Returns: the shared builds failed.
create or replace function graph.cascade_dependency_failed(p_derivation bigint, p_attempt bigint)
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_failed bigint[];
begin
  with recursive above (id) as (
    select p_derivation
    union
    select b.derivation
    from above a
    join gradient.derivation_dependency e on e.dependency = a.id
    join gradient.derivation_build b on b.derivation = e.derivation
    where b.status in ('Created', 'Queued', 'FailedTransient') and not b.cache_available
      and not exists (
        select from gradient.dispatched_job o
        where o.job = 'build:' || b.derivation and o.finished_at is null)
  )
  select array_agg(a.id order by a.id) into v_failed from above a where a.id <> p_derivation;

  perform from gradient.derivation_build b where b.derivation = any (v_failed) order by b.derivation for no key update;
  update gradient.derivation_build b
  set status = 'DependencyFailed', failed_by = p_attempt, retry_at = null, prioritized = false,
      updated_at = gradient.current_time()
  where b.derivation = any (v_failed);
  perform graph.sync_ready(v_failed);
  return coalesce(v_failed, '{}');
end
$fn$;

comment on function graph.cascade_dependency_failed(bigint, bigint) is
  'Makes DependencyFailed, pointing at p_attempt, whatever pending needs p_derivation. Returns those shared builds.';
