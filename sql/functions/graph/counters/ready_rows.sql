-- The rows that ready_build must hold for the given shared builds: one for each project that a
-- queued, not handed out build may be driven by, with the class of workers it needs.
-- Locks: none. Joined in FROM; inlined by the planner, so it has no SET clause.
create or replace function graph.ready_rows(p_ids bigint[])
  returns table (derivation_build bigint, project bigint, architecture text, required_features text[], priority integer, queued_at timestamptz)
  language sql stable
as $fn$
  select b.derivation, t.project,
    case when b.cache_available or d.architecture = 'builtin' then 'builtin' else d.architecture end,
    case when b.cache_available or d.architecture = 'builtin' then '{}' else d.required_features end,
    max(case when b.prioritized or e.prioritized then 1 else 0 end),
    b.queued_at
  from unnest(p_ids) as u (id)
  join gradient.derivation_build b on b.derivation = u.id
  join gradient.derivation d on d.id = b.derivation
  join gradient.build_job j on j.derivation_build = b.derivation
  join gradient.evaluation e on e.id = j.evaluation and e.status <> 'Aborted'
  join gradient.task t on t.id = e.task
  where b.status = 'Queued'
    and not exists (
      select from gradient.dispatched_job o
      where o.job = 'build:' || b.derivation and o.finished_at is null)
  group by b.derivation, d.id, t.project
$fn$;

comment on function graph.ready_rows(bigint[]) is
  'What gradient.ready_build must hold for p_ids: a row for each queued, not handed out build and each project with a not aborted evaluation naming it.';
