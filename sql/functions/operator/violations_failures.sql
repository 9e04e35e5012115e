-- Broken invariants of failing and trying again.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_failures()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  select 'retry_at', format('build %s, %s', b.derivation, b.status),
    case when b.status = 'FailedTransient' then 'a time' else 'none' end,
    coalesce(b.retry_at::text, 'none')
  from gradient.derivation_build b
  where (b.status = 'FailedTransient') is distinct from (b.retry_at is not null);

  -- failed_by is the attempt whose failure failed the dependent, whatever became of that build since:
  -- an evaluation that does not name the dependent may try it again. Most dependents stand right above
  -- the failed build or above another dependent of it; only the others are followed down.
  return query
  with recursive dependent as materialized (
    select b.derivation, b.failed_by, t.derivation_build as failed, t.outcome
    from gradient.derivation_build b
    left join gradient.build_attempt t on t.id = b.failed_by
    where b.status = 'DependencyFailed'
  ), near as (
    select d.derivation
    from dependent d
    join gradient.derivation_dependency e on e.derivation = d.derivation
    left join dependent i on i.derivation = e.dependency
    where e.dependency = d.failed or i.failed_by = d.failed_by
  ), below as (
    select d.derivation as origin, d.derivation as node, d.failed
    from dependent d
    where d.failed is not null and d.derivation not in (select n.derivation from near n)
    union
    select w.origin, e.dependency, w.failed
    from below w
    join gradient.derivation_dependency e on e.derivation = w.node
    where w.node <> w.failed
  ), aborted as (
    -- What a user aborted inside an evaluation fails what needs it, and no attempt stands for that.
    select j.derivation_build as derivation
    from gradient.build_job j
    where j.aborted
    union
    select e.derivation
    from aborted a
    join gradient.derivation_dependency e on e.dependency = a.derivation
    join dependent d on d.derivation = e.derivation
  ), found as (
    select d.derivation,
      case
        when d.failed_by is null and d.derivation in (select a.derivation from aborted a) then null
        when d.failed_by is null then 'none'
        when d.failed is null then format('attempt %s, which does not exist', d.failed_by)
        when d.outcome <> 'Failed'
          then format('attempt %s, %s, of build %s', d.failed_by, d.outcome, d.failed)
        when n.derivation is null and w.origin is null
          then format('attempt %s of build %s, which is not below it', d.failed_by, d.failed)
      end as wrong
    from dependent d
    left join (select distinct x.derivation from near x) n on n.derivation = d.derivation
    left join below w on w.origin = d.derivation and w.node = d.failed
  )
  select 'failed_by', 'build ' || f.derivation, 'a failed attempt of a build below it',
    f.wrong
  from found f
  where f.wrong is not null;

  return query
  select 'failed_by', format('build %s, %s', b.derivation, b.status), 'none',
    'attempt ' || b.failed_by
  from gradient.derivation_build b
  where b.failed_by is not null and b.status <> 'DependencyFailed';

  -- Once the walk of an evaluation has ended, nothing it waits for may wait for a lasting failure.
  -- What is handed out is left alone: its report decides.
  return query
  select distinct 'waits_for_failure', format('build %s, %s', b.derivation, b.status),
    'DependencyFailed', format('waits for build %s, %s', i.derivation, i.status)
  from gradient.derivation_build b
  join gradient.derivation d on d.id = b.derivation
  join gradient.derivation_dependency e on e.derivation = b.derivation
  join gradient.derivation_build i on i.derivation = e.dependency
  join gradient.build_job j on j.derivation_build = b.derivation
  join gradient.evaluation v on v.id = j.evaluation
  left join gradient.dispatched_job a
    on a.derivation_build = b.derivation and a.kind = 'Build' and a.finished_at is null
  where v.status = 'Building' and b.wanted and d.walked and not b.cache_available and a.id is null
    and b.status in ('Created', 'Queued', 'FailedTransient')
    and e.kind in ('Build', 'Both')
    and i.status in ('FailedPermanent', 'DependencyFailed', 'FailedTimeout');
end;
$body$;

comment on function gradient.violations_failures() is
'The part of gradient.violations() about failing and trying again: retry_at, failed_by, waits_for_failure.';
