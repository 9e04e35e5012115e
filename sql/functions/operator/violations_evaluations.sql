-- Broken invariants of evaluations: their counters, and verdicts that are missing or wrong.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_evaluations()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  with build as (
    select b.derivation,
      (b.wanted and b.status in ('Created', 'Queued', 'Building', 'FailedTransient', 'Skipped'))
        or b.status in ('Queued', 'Building') as blocks,
      b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout') as failed,
      b.status
    from gradient.derivation_build b
  ), recount as (
    select j.evaluation, count(*) as named,
      count(*) filter (where b.blocks) as active,
      count(*) filter (where b.failed) as failed,
      count(*) filter (where b.status = 'Queued') as queued,
      count(*) filter (where b.status = 'Building') as building
    from gradient.build_job j
    join build b on b.derivation = j.derivation_build
    group by j.evaluation
  ), unfolded as (
    select l.evaluation, sum(l.named) as named, sum(l.active) as active, sum(l.failed) as failed,
      sum(l.queued) as queued, sum(l.building) as building
    from gradient.evaluation_shared_build_delta l
    group by l.evaluation
  )
  select c.rule, format('evaluation %s, %s', v.id, v.status),
    coalesce(c.expected, 0)::text, (c.stored + coalesce(c.delta, 0))::text
  from gradient.evaluation v
  left join recount r on r.evaluation = v.id
  left join unfolded l on l.evaluation = v.id
  cross join lateral (values
    ('evaluation_named', r.named, v.named_shared_builds, l.named),
    ('evaluation_active', r.active, v.active_shared_builds, l.active),
    ('evaluation_failed', r.failed, v.failed_shared_builds, l.failed),
    ('evaluation_queued', r.queued, v.queued_shared_builds, l.queued),
    ('evaluation_building', r.building, v.building_shared_builds, l.building)
  ) as c (rule, expected, stored, delta)
  where v.status not in ('Completed', 'Failed', 'Aborted')
    and coalesce(c.expected, 0) is distinct from c.stored + coalesce(c.delta, 0);

  return query
  select 'verdict_missing', 'evaluation ' || v.id, 'a verdict',
    'Building, and no build blocks it'
  from gradient.evaluation v
  where v.status = 'Building'
    and v.id not in (
      select j.evaluation
      from gradient.build_job j
      join gradient.derivation_build b on b.derivation = j.derivation_build
      where (b.wanted
          and b.status in ('Created', 'Queued', 'Building', 'FailedTransient', 'Skipped'))
        or b.status in ('Queued', 'Building'));

  return query
  select 'completed_with_error', 'evaluation ' || v.id, 'Failed',
    'Completed, with the error message ' || m.id
  from gradient.evaluation v
  join gradient.evaluation_message m on m.evaluation = v.id and m.level = 'Error'
  where v.status = 'Completed';

  -- A build may fail, or fail anew, after the verdict; only one untouched since before it counts.
  return query
  select 'completed_with_failure', 'evaluation ' || v.id, 'Failed',
    format('Completed %s, though build %s was %s at %s', v.finished_at, b.derivation, b.status,
      b.updated_at)
  from gradient.evaluation v
  join gradient.build_job j on j.evaluation = v.id
  join gradient.derivation_build b on b.derivation = j.derivation_build
  where v.status = 'Completed'
    and b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
    and b.updated_at < v.finished_at;

  -- What only aborted evaluations name and nobody wants does not run.
  return query
  select 'aborted_runs', 'build ' || b.derivation, 'Aborted',
    format('%s, named by aborted evaluations only', b.status)
  from gradient.derivation_build b
  join gradient.build_job j on j.derivation_build = b.derivation
  join gradient.evaluation v on v.id = j.evaluation
  where b.status in ('Queued', 'Building') and not b.wanted
  group by b.derivation
  having bool_and(v.status = 'Aborted');
end;
$body$;

comment on function gradient.violations_evaluations() is
'The part of gradient.violations() about evaluations: their counters, verdict_missing, completed_with_error, completed_with_failure, aborted_runs.';
