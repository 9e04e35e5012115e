-- Broken invariants of the queue: a build is Queued exactly when its gates hold, and ready_build
-- holds exactly the queued builds, once for each project that may drive them.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_queue()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  -- An assigned build is left alone when a gate closes behind it; its outcome decides.
  return query
  with named as (
    select distinct j.derivation_build as derivation from gradient.build_job j
  ), gate as (
    select b.derivation, b.status,
      a.id is not null as assigned,
      array_remove(array[
        case when not d.walked then 'not walked' end,
        case when n.derivation is null then 'named by no evaluation' end,
        case when not b.wanted then 'not wanted' end,
        case when not b.cache_available and not b.probed then 'not probed' end,
        case when not b.cache_available and b.blocking_deps <> 0 then 'blocking_deps' end,
        case when not b.cache_available and not d.drv_present then 'drv not present' end,
        case when not b.cache_available and b.missing_sources <> 0 then 'missing_sources' end
      ], null) as closed
    from gradient.derivation_build b
    join gradient.derivation d on d.id = b.derivation
    left join named n on n.derivation = b.derivation
    left join gradient.dispatched_job a
      on a.derivation_build = b.derivation and a.kind = 'Build' and a.finished_at is null
    where b.status in ('Created', 'Queued')
  )
  select 'queued_gates', 'build ' || g.derivation, 'every gate holds',
    array_to_string(g.closed, ', ')
  from gate g
  where g.status = 'Queued' and not g.assigned and g.closed <> '{}'
  union all
  select 'promotable_not_queued', 'build ' || g.derivation, 'Queued', 'Created, every gate holds'
  from gate g
  where g.status = 'Created' and g.closed = '{}';

  return query
  with expected as (
    select distinct b.derivation, t.project,
      case when b.cache_available or d.architecture = 'builtin' then 'builtin'
        else d.architecture end as architecture,
      case when b.cache_available or d.architecture = 'builtin' then '{}'
        else d.required_features end as features
    from gradient.derivation_build b
    join gradient.derivation d on d.id = b.derivation
    join gradient.build_job j on j.derivation_build = b.derivation
    join gradient.evaluation v on v.id = j.evaluation
    join gradient.task t on t.id = v.task
    left join gradient.dispatched_job a
      on a.derivation_build = b.derivation and a.kind = 'Build' and a.finished_at is null
    where b.status = 'Queued' and v.status <> 'Aborted' and a.id is null
  ), stored as (
    select r.derivation_build as derivation, r.project, c.architecture,
      c.required_features as features
    from gradient.ready_build r
    join gradient.build_class c on c.id = r.class
  ), pair as (
    select coalesce(e.derivation, s.derivation) as derivation,
      coalesce(e.project, s.project) as project,
      e.architecture || array(select distinct f from unnest(e.features) f order by f)::text
        as expected,
      s.architecture || array(select distinct f from unnest(s.features) f order by f)::text
        as found
    from expected e
    full join stored s on s.derivation = e.derivation and s.project = e.project
  )
  select 'ready_build', format('build %s for project %s', p.derivation, p.project),
    coalesce('ready as ' || p.expected, 'not ready'), coalesce('ready as ' || p.found, 'not ready')
  from pair p
  where p.expected is distinct from p.found;
end;
$body$;

comment on function gradient.violations_queue() is
'The part of gradient.violations() about the queue: queued_gates, promotable_not_queued, ready_build.';
