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

  -- Most dependents stand right above their failure or above another dependent of it; only the
  -- others are followed down.
  return query
  with recursive near as (
    select b.derivation
    from gradient.derivation_build b
    join gradient.derivation_dependency e on e.derivation = b.derivation
    join gradient.derivation_build i on i.derivation = e.dependency
    where b.status = 'DependencyFailed'
      and (i.derivation = b.failed_by
        or (i.status = 'DependencyFailed' and i.failed_by = b.failed_by))
  ), below as (
    select b.derivation as origin, b.derivation as node, b.failed_by
    from gradient.derivation_build b
    where b.status = 'DependencyFailed' and b.failed_by is not null
      and b.derivation not in (select n.derivation from near n)
    union
    select w.origin, e.dependency, w.failed_by
    from below w
    join gradient.derivation_dependency e on e.derivation = w.node
    where w.node <> w.failed_by
  )
  select 'failed_by', 'build ' || b.derivation,
    'failed_by names a failed build below it',
    case
      when b.failed_by is null then 'none'
      when f.derivation is null then format('build %s, which does not exist', b.failed_by)
      when f.status not in ('FailedPermanent', 'FailedTimeout')
        then format('build %s, %s', b.failed_by, f.status)
      else format('build %s, which is not below it', b.failed_by)
    end
  from gradient.derivation_build b
  left join gradient.derivation_build f on f.derivation = b.failed_by
  where b.status = 'DependencyFailed'
    and (f.derivation is null
      or f.status not in ('FailedPermanent', 'FailedTimeout')
      or (b.derivation not in (select n.derivation from near n)
        and not exists (
          select from below w where w.origin = b.derivation and w.node = b.failed_by)));

  return query
  select 'failed_by', format('build %s, %s', b.derivation, b.status), 'none',
    'build ' || b.failed_by
  from gradient.derivation_build b
  where b.failed_by is not null and b.status <> 'DependencyFailed';

  -- Once the walk of an evaluation has ended, nothing it waits for may wait for a lasting failure.
  return query
  select distinct 'waits_for_failure', format('build %s, %s', b.derivation, b.status),
    'DependencyFailed', format('waits for build %s, %s', i.derivation, i.status)
  from gradient.derivation_build b
  join gradient.derivation d on d.id = b.derivation
  join gradient.derivation_dependency e on e.derivation = b.derivation
  join gradient.derivation_build i on i.derivation = e.dependency
  join gradient.build_job j on j.derivation_build = b.derivation
  join gradient.evaluation v on v.id = j.evaluation
  where v.status = 'Building' and b.wanted and d.walked and not b.cache_available
    and b.status in ('Created', 'Queued', 'FailedTransient')
    and e.kind in ('Build', 'Both')
    and i.status in ('FailedPermanent', 'DependencyFailed', 'FailedTimeout');
end;
$body$;

comment on function gradient.violations_failures() is
'The part of gradient.violations() about failing and trying again: retry_at, failed_by, waits_for_failure.';
