-- Broken invariants of need: who is wanted, who is skipped, and whether an evaluation names them.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_need()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  with recursive node as materialized (
    select b.derivation,
      d.walked and b.probed and not b.cache_available
        and b.status in ('Created', 'Queued', 'Building', 'FailedTransient') as builder
    from gradient.derivation_build b
    join gradient.derivation d on d.id = b.derivation
    where not b.fetchable
      and b.status not in ('FailedPermanent', 'DependencyFailed', 'FailedTimeout')
  ), step as materialized (
    -- An edge that need may follow: runtime edges always, build edges from builders only.
    select e.derivation, e.dependency, i.builder
    from gradient.derivation_dependency e
    join node n on n.derivation = e.derivation
    join node i on i.derivation = e.dependency
    where e.kind in ('Runtime', 'Both') or n.builder
  ), reached as (
    select n.derivation
    from gradient.entry_point p
    join gradient.evaluation v on v.id = p.evaluation
    join node n on n.derivation = p.derivation
    left join gradient.build_job j
      on j.evaluation = p.evaluation and j.derivation_build = p.derivation
    where v.status <> 'Aborted' and not coalesce(j.aborted, false)
    union
    select s.dependency
    from reached r
    join step s on s.derivation = r.derivation
  )
  select 'wanted', format('build %s, %s', b.derivation, b.status),
    (r.derivation is not null)::text, b.wanted::text
  from gradient.derivation_build b
  left join reached r on r.derivation = b.derivation
  where b.wanted is distinct from (r.derivation is not null);

  return query
  select 'wanted_unnamed', format('build %s, %s', b.derivation, b.status),
    'named by an evaluation', 'wanted, and named by none'
  from gradient.derivation_build b
  left join gradient.build_job j on j.derivation_build = b.derivation
  where b.wanted and j.id is null;

  return query
  select 'entry_point_unnamed',
    format('entry point %s of evaluation %s', p.attribute, p.evaluation),
    format('the evaluation names build %s', p.derivation), 'not named'
  from gradient.entry_point p
  left join gradient.build_job j
    on j.evaluation = p.evaluation and j.derivation_build = p.derivation
  where j.id is null;

  return query
  select distinct 'skipped', 'build ' || b.derivation,
    'unwanted and no entry point',
    case when b.wanted then 'Skipped but wanted' else 'Skipped but an entry point' end
  from gradient.derivation_build b
  left join gradient.entry_point p on p.derivation = b.derivation
  where b.status = 'Skipped' and (b.wanted or p.id is not null);

  -- What nobody wants is set aside when the walk ends that named it; until then it may be wanted.
  return query
  select 'unwanted_not_skipped', 'build ' || b.derivation, 'Skipped',
    'Created, unwanted and no entry point'
  from gradient.derivation_build b
  join gradient.build_job j on j.derivation_build = b.derivation
  join gradient.evaluation v on v.id = j.evaluation
  left join gradient.entry_point p on p.derivation = b.derivation
  where b.status = 'Created' and not b.wanted and p.id is null
  group by b.derivation
  having bool_or(v.status = 'Building')
    and bool_and(v.status in ('Building', 'Completed', 'Failed', 'Aborted'));
end;
$body$;

comment on function gradient.violations_need() is
'The part of gradient.violations() about need: wanted, wanted_unnamed, entry_point_unnamed, skipped, unwanted_not_skipped.';
