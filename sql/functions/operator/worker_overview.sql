-- gradient.worker_overview
-- Every worker that is registered or ever was connected: where it is, what it can and what it does.

create view gradient.worker_overview as
with known as (
  select r.worker_id, 'project' as access, bool_or(r.active) as active
  from gradient.worker_registration r
  group by r.worker_id
  union all
  select w.worker_id, 'team', w.enabled
  from gradient.team_worker w
)
select
  coalesce(k.worker_id, c.worker_id) as worker,
  case
    when c.worker_id is null then 'Registered'
    when c.disconnected_at is not null then 'Disconnected'
    when c.draining then 'Draining'
    else 'Connected' end as state,
  k.access,
  coalesce(k.active, false) as active,
  array_remove(array[
    case when c.can_fetch then 'fetch' end,
    case when c.can_eval then 'eval' end,
    case when c.can_build then 'build' end], null) as capabilities,
  coalesce(c.architectures, '{}') as architectures,
  coalesce(c.system_features, '{}') as system_features,
  c.build_slots,
  c.eval_slots,
  a.running,
  a.running_builds,
  a.running_evaluations,
  array(
    select p.name from gradient.project p where p.id = any(c.projects) order by p.name) as projects,
  c.instance,
  c.version,
  c.zone,
  c.endpoint,
  c.cpu_count,
  c.ram_total_mb,
  s.last_seen,
  s.metrics,
  c.connected_at,
  c.disconnected_at
from known k
full join gradient.worker_connection c on c.worker_id = k.worker_id
left join gradient.worker_seen s on s.worker_id = c.worker_id
cross join lateral (
  select count(*) as running,
         count(*) filter (where d.kind = 'Build') as running_builds,
         count(*) filter (where d.kind = 'Evaluation') as running_evaluations
  from gradient.dispatched_job d
  where d.worker_id = coalesce(k.worker_id, c.worker_id)
    and d.finished_at is null
) a;

comment on view gradient.worker_overview is 'Workers for people: state, what they can do, what they are doing.';
comment on column gradient.worker_overview.state is 'Connected, Draining (about to stop), Disconnected, or Registered (never connected).';
comment on column gradient.worker_overview.access is 'project: registered with projects; team: a worker of a team.';
comment on column gradient.worker_overview.active is 'Whether it would be let in.';
comment on column gradient.worker_overview.running is 'Jobs it has now, also while it is disconnected and its grace lasts.';
comment on column gradient.worker_overview.projects is 'The projects it serves on this connection.';
