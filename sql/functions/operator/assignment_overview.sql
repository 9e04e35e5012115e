-- gradient.assignment_overview
-- What was handed to workers. The open ones are those without an end.

create view gradient.assignment_overview as
select
  a.id,
  a.job,
  lower(a.kind::text) as kind,
  p.name as project,
  coalesce(d.name, t.name) as name,
  a.evaluation,
  a.derivation_build as build,
  a.worker_id as worker,
  a.instance,
  a.substitute,
  a.queued_at,
  a.dispatched_at,
  a.started_at,
  a.abort_requested_at,
  a.finished_at,
  a.outcome,
  a.outcome_class
from gradient.dispatched_job a
join gradient.project p on p.id = a.project
left join gradient.derivation d on d.id = a.derivation_build
left join gradient.evaluation e on e.id = a.evaluation
left join gradient.task t on t.id = e.task;

comment on view gradient.assignment_overview is 'Assignments for people, open (finished_at is null) and closed.';
comment on column gradient.assignment_overview.name is 'Name of the derivation, or of the task.';
comment on column gradient.assignment_overview.evaluation is 'The evaluation, or for a build the one it was handed out for.';
comment on column gradient.assignment_overview.abort_requested_at is 'When someone asked the worker to stop.';
