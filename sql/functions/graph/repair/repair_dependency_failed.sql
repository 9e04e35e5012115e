-- Step 3 of the repair: fails what needs a build with a lasting failure.
-- Locks: the turn; rows by derivation. Returns: the shared builds failed.
create or replace function graph.repair_dependency_failed(p_evaluation bigint, p_closure bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_failed bigint[];
begin
  perform graph.take_turn();
  with recursive member (id) as materialized (
    select unnest(p_closure)
  ), above (id, failed_by) as (
    -- An abort is no failure, so that no attempt stands for it.
    select b.derivation, case when b.status <> 'Aborted' then coalesce(b.failed_by, (
      select max(a.id) from gradient.build_attempt a where a.derivation_build = b.derivation and a.outcome = 'Failed')) end
    from gradient.derivation_build b
    where b.derivation = any (p_closure)
      and (b.status in ('FailedPermanent', 'DependencyFailed', 'FailedTimeout')
           or (b.status = 'Aborted' and exists (
             select from gradient.build_job j
             where j.evaluation = p_evaluation and j.derivation_build = b.derivation and j.aborted)))
    union
    select b.derivation, a.failed_by
    from above a
    join gradient.derivation_dependency e on e.dependency = a.id
    join gradient.derivation_build b on b.derivation = e.derivation
    where b.status in ('Created', 'Queued', 'FailedTransient') and not b.cache_available
      and b.derivation in (select m.id from member m)
      and not exists (
        select from gradient.dispatched_job o
        where o.job = 'build:' || b.derivation and o.finished_at is null)
  ), chosen as (
    select a.id, min(a.failed_by) as failed_by from above a group by a.id
  ), moved as (
    update gradient.derivation_build b
    set status = 'DependencyFailed', failed_by = c.failed_by, retry_at = null, prioritized = false,
        updated_at = gradient.current_time()
    from chosen c
    where b.derivation = c.id and b.status in ('Created', 'Queued', 'FailedTransient')
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_failed from moved m;
  perform graph.sync_ready(v_failed);
  return v_failed;
end
$fn$;

comment on function graph.repair_dependency_failed(bigint, bigint[]) is
  'Repair step 3: makes DependencyFailed whatever in p_closure (of p_evaluation) needs a build with a lasting failure. Returns those shared builds.';
