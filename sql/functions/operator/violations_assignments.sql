-- Broken invariants of assignments and attempts: what runs is assigned once, and what is assigned
-- may run. An assignment that was asked to stop (abort_requested_at) stays open until its worker
-- answers, while its build or evaluation has moved on.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_assignments()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  select 'building_assigned', 'build ' || b.derivation,
    'one open assignment with one running attempt',
    format('%s open assignments, %s running attempts of them',
      count(distinct a.id), count(r.id))
  from gradient.derivation_build b
  left join gradient.dispatched_job a
    on a.job = 'build:' || b.derivation and a.kind = 'Build' and a.finished_at is null
  left join gradient.build_attempt r
    on r.dispatched_job = a.id and r.derivation_build = b.derivation and r.outcome = 'Running'
  where b.status = 'Building'
  group by b.derivation
  having count(distinct a.id) <> 1 or count(r.id) <> 1;

  return query
  select 'build_assignment', format('assignment %s of %s', a.id, a.job),
    case when a.abort_requested_at is null then 'a build Queued or Building, ' else '' end
      || 'one running attempt',
    format('build %s, %s, %s running attempts', a.derivation_build,
      coalesce(b.status::text, 'without a row'), count(r.id))
  from gradient.dispatched_job a
  left join gradient.derivation_build b on b.derivation = a.derivation_build
  left join gradient.build_attempt r
    on r.dispatched_job = a.id and r.derivation_build = a.derivation_build
      and r.outcome = 'Running'
  where a.kind = 'Build' and a.finished_at is null
  group by a.id, b.status
  having count(r.id) <> 1
    or (a.abort_requested_at is null
      and coalesce(b.status not in ('Queued', 'Building'), true));

  return query
  select 'running_attempt', format('attempt %s of build %s', r.id, r.derivation_build),
    'an open assignment of that build',
    coalesce(format('assignment %s of %s, closed %s', a.id, a.job, a.finished_at),
      'no assignment')
  from gradient.build_attempt r
  left join gradient.dispatched_job a on a.id = r.dispatched_job
  where r.outcome = 'Running'
    and (a.id is null or a.finished_at is not null
      or a.derivation_build is distinct from r.derivation_build);

  return query
  select 'assignment_job', 'assignment ' || a.id,
    case a.kind
      when 'Build' then coalesce('build:' || a.derivation_build, 'a build')
      else coalesce('eval:' || a.evaluation, 'an evaluation')
    end, a.job
  from gradient.dispatched_job a
  where a.finished_at is null
    and a.job is distinct from case a.kind
      when 'Build' then 'build:' || a.derivation_build
      else 'eval:' || a.evaluation
    end;

  return query
  select 'evaluation_assignment', format('assignment %s of %s', a.id, a.job),
    'an evaluation that is still evaluated', coalesce(v.status::text, 'no evaluation')
  from gradient.dispatched_job a
  left join gradient.evaluation v on v.id = a.evaluation
  where a.kind = 'Evaluation' and a.finished_at is null and a.abort_requested_at is null
    and coalesce(v.status in ('Building', 'Completed', 'Failed', 'Aborted'), true);

  return query
  select 'evaluating_assigned', format('evaluation %s, %s', v.id, v.status),
    'one open assignment', 'none'
  from gradient.evaluation v
  left join gradient.dispatched_job a
    on a.job = 'eval:' || v.id and a.finished_at is null
  where v.status in ('Fetching', 'EvaluatingFlake', 'EvaluatingDerivation') and a.id is null;
end;
$body$;

comment on function gradient.violations_assignments() is
'The part of gradient.violations() about assignments: building_assigned, build_assignment, running_attempt, assignment_job, evaluation_assignment, evaluating_assigned.';
