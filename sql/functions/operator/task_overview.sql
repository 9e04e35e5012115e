-- gradient.task_overview
-- Every task with its latest evaluation.

create view gradient.task_overview as
select
  t.id,
  p.name as project,
  t.name,
  t.display_name,
  t.active,
  t.repository,
  t.revision,
  t.wildcard,
  t.concurrency,
  t.wait_for_workers,
  t.retry_failed_builds,
  t.allow_import_from_derivation,
  t.eval_timeout_secs,
  t.eval_memory_mb,
  t.keep_evaluations,
  e.id as latest_evaluation,
  e.status as latest_status,
  e.created_at as latest_created_at,
  t.created_at
from gradient.task t
join gradient.project p on p.id = t.project
left join lateral (
  select e.id, e.status, e.created_at
  from gradient.evaluation e
  where e.task = t.id
  order by e.id desc
  limit 1
) e on true;

comment on view gradient.task_overview is 'Tasks for people, with their latest evaluation.';
comment on column gradient.task_overview.eval_timeout_secs is 'Time limit of an evaluation, in seconds.';
comment on column gradient.task_overview.eval_memory_mb is 'Memory limit of an evaluation, in MiB.';
