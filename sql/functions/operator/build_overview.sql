-- gradient.build_overview
-- Every shared build with its gates, its open assignment and its latest attempt. Read it with a
-- condition on id, hash or status.

create view gradient.build_overview as
select
  b.derivation as id,
  d.name,
  d.hash || '-' || d.name || '.drv' as drv,
  d.hash,
  b.status,
  d.architecture,
  d.required_features,
  case
    when b.cache_available then 'substitute'
    when d.architecture = 'builtin' and d.is_fixed_output then 'download'
    else 'build' end as kind,
  b.wanted,
  b.prioritized,
  d.walked,
  b.probed,
  d.drv_present,
  b.fetchable,
  b.blocking_deps,
  b.missing_sources,
  b.missing_runtime_deps,
  b.attempt,
  b.retry_at,
  f.derivation_build as failed_by,
  b.failed_by as failed_by_attempt,
  o.id as assignment,
  o.worker_id as worker,
  a.id as latest_attempt,
  a.outcome,
  a.outcome_class,
  k.shown as outcome_shown,
  a.failure_message,
  a.build_started_at,
  a.build_finished_at,
  b.created_at,
  b.queued_at,
  b.dispatched_at,
  b.updated_at
from gradient.derivation_build b
join gradient.derivation d on d.id = b.derivation
left join gradient.dispatched_job o on o.job = 'build:' || b.derivation and o.finished_at is null
left join lateral (
  select a.*
  from gradient.build_attempt a
  where a.derivation_build = b.derivation
  order by a.id desc
  limit 1
) a on true
left join gradient.build_attempt f on f.id = b.failed_by
left join gradient.outcome_class k on k.name = a.outcome_class;

comment on view gradient.build_overview is 'Shared builds for people: status, gates, worker and latest attempt. The id is that of the derivation.';
comment on column gradient.build_overview.kind is 'How a worker gets the outputs: substitute (from upstream), download (a builtin fetch) or build.';
comment on column gradient.build_overview.blocking_deps is 'Inputs that are not in the cache yet; 0 is one of the queue conditions.';
comment on column gradient.build_overview.missing_sources is 'Plain sources that are not in the cache; 0 is one of the queue conditions.';
comment on column gradient.build_overview.drv_present is 'Whether its own .drv is in the cache, another queue condition.';
comment on column gradient.build_overview.missing_runtime_deps is 'Runtime inputs whose closure is not complete in the cache.';
comment on column gradient.build_overview.attempt is 'Failed attempts that were charged so far.';
comment on column gradient.build_overview.failed_by is 'The failed build that made this one DependencyFailed.';
comment on column gradient.build_overview.failed_by_attempt is 'The attempt of that build which failed.';
comment on column gradient.build_overview.assignment is 'The open assignment, while a worker has it.';
