-- Broken counters and flags of shared builds, each recounted from the rows next to it.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_counters()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  select 'missing_sources', 'build ' || b.derivation,
    coalesce(c.missing, 0)::text, b.missing_sources::text
  from gradient.derivation_build b
  left join (
    select s.derivation, count(*) as missing
    from gradient.derivation_input_source s
    left join gradient.cached_path p on p.hash = s.hash
    where p.id is null
    group by s.derivation
  ) c on c.derivation = b.derivation
  where b.missing_sources is distinct from coalesce(c.missing, 0);

  -- Present: at least one output and every output in the cache. Complete: present and no runtime
  -- input missing. The three rules below read completeness of the inputs as it is stored.
  return query
  with present as (
    select o.derivation
    from gradient.derivation_output o
    left join gradient.cached_path p on p.hash = o.hash
    group by o.derivation
    having bool_and(p.id is not null)
  ), build as (
    select b.*, p.derivation is not null and b.missing_runtime_deps = 0 as complete
    from gradient.derivation_build b
    left join present p on p.derivation = b.derivation
  ), runtime as (
    select e.derivation, count(*) as missing
    from gradient.derivation_dependency e
    join build i on i.derivation = e.dependency
    where e.kind in ('Runtime', 'Both') and not i.complete
    group by e.derivation
  ), blocking as (
    select e.derivation, count(*) as missing
    from gradient.derivation_dependency e
    left join build i on i.derivation = e.dependency
    where e.kind in ('Build', 'Both')
      and not coalesce(i.complete and i.status in ('Completed', 'Substituted'), false)
    group by e.derivation
  )
  select r.rule, 'build ' || b.derivation, r.expected, r.found
  from build b
  left join runtime on runtime.derivation = b.derivation
  left join blocking on blocking.derivation = b.derivation
  cross join lateral (values
    ('missing_runtime_deps', coalesce(runtime.missing, 0)::text, b.missing_runtime_deps::text),
    ('fetchable', (b.complete and b.status in ('Completed', 'Substituted'))::text,
      b.fetchable::text),
    ('blocking_deps', coalesce(blocking.missing, 0)::text, b.blocking_deps::text)
  ) as r (rule, expected, found)
  where r.expected is distinct from r.found;
end;
$body$;

comment on function gradient.violations_counters() is
'The part of gradient.violations() about shared builds: missing_sources, missing_runtime_deps, fetchable, blocking_deps.';
