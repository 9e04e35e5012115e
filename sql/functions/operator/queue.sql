-- gradient.queue
-- What waits for a worker: queued evaluations and ready builds, in the order in which they go out.
-- A build that several projects may drive stands here once for each of them.

create view gradient.queue as
select q.kind, q.evaluation, q.build, q.name, q.architecture, q.required_features, q.project,
       q.priority, q.queued_at
from (
  select 'evaluation' as kind, e.id as evaluation, null::bigint as build, t.name,
         null::text as architecture, null::text[] as required_features, p.name as project,
         e.prioritized::integer as priority, e.updated_at as queued_at, e.id as turn
  from gradient.evaluation e
  join gradient.task t on t.id = e.task
  join gradient.project p on p.id = t.project
  where e.status = 'Queued'
    and not exists (
      select from gradient.dispatched_job a
      where a.job = 'eval:' || e.id and a.finished_at is null)
  union all
  select 'build', null, r.derivation_build, d.name, c.architecture, c.required_features, p.name,
         r.priority, r.queued_at, r.derivation_build
  from gradient.ready_build r
  join gradient.build_class c on c.id = r.class
  join gradient.derivation d on d.id = r.derivation_build
  join gradient.project p on p.id = r.project
) q
order by q.kind desc, q.priority desc, q.queued_at, q.turn;

comment on view gradient.queue is 'Evaluations and builds that wait for a worker, next one first; evaluations and builds have slots of their own.';
comment on column gradient.queue.architecture is 'The system a worker must have; builtin is any worker.';
comment on column gradient.queue.required_features is 'The system features a worker must have.';
