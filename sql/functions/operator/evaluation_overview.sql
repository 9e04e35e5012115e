-- gradient.evaluation_overview
-- Every evaluation with its task, its progress and, when it waits, why. The counters are read as
-- every reader must: the stored value and what is not folded into it yet.

create view gradient.evaluation_overview as
select
  e.id,
  p.name as project,
  t.name as task,
  e.status,
  e.kind,
  e.repository,
  e.revision,
  c.hash as commit,
  c.message as commit_message,
  c.author_name as commit_author,
  e.wildcard,
  e.walk_mode,
  e.prioritized,
  e.waiting_reason,
  e.named_shared_builds + n.named as builds,
  e.active_shared_builds + n.active as active,
  e.queued_shared_builds + n.queued as queued,
  e.building_shared_builds + n.building as building,
  e.failed_shared_builds + n.failed as failed,
  (select count(*) from gradient.evaluation_message m
   where m.evaluation = e.id and m.level = 'Error') as errors,
  (select d.worker_id from gradient.dispatched_job d
   where d.job = 'eval:' || e.id and d.finished_at is null) as worker,
  e.created_at,
  e.updated_at,
  e.fetch_started_at,
  e.eval_flake_started_at,
  e.eval_drv_started_at,
  e.building_started_at,
  e.finished_at,
  e.previous
from gradient.evaluation e
join gradient.task t on t.id = e.task
join gradient.project p on p.id = t.project
left join gradient.commit c on c.id = e.commit
cross join lateral (
  select coalesce(sum(d.named), 0) as named, coalesce(sum(d.active), 0) as active,
         coalesce(sum(d.failed), 0) as failed, coalesce(sum(d.queued), 0) as queued,
         coalesce(sum(d.building), 0) as building
  from gradient.evaluation_shared_build_delta d
  where d.evaluation = e.id
) n;

comment on view gradient.evaluation_overview is 'Evaluations for people: task, status, progress, times, and the reason while Waiting.';
comment on column gradient.evaluation_overview.builds is 'Shared builds that the evaluation names.';
comment on column gradient.evaluation_overview.active is 'Those it still waits for.';
comment on column gradient.evaluation_overview.failed is 'Those that failed, were aborted, or whose dependency failed.';
comment on column gradient.evaluation_overview.errors is 'Error messages; one is enough for the verdict Failed.';
comment on column gradient.evaluation_overview.worker is 'The worker that evaluates it now.';
comment on column gradient.evaluation_overview.waiting_reason is 'Why it does not move, while it is Waiting.';
