-- gradient.worker_registration_overview
-- Which worker may serve which project, by a registration of its own or through its team; without
-- the token hashes.

create view gradient.worker_registration_overview as
select r.worker_id as worker, p.name as project, null::text as team, r.display_name, r.active,
       r.enable_fetch, r.enable_eval, r.enable_build, r.created_at
from gradient.worker_registration r
join gradient.project p on p.id = r.project
union all
select w.worker_id, p.name, t.name, w.display_name, w.enabled,
       w.enable_fetch, w.enable_eval, w.enable_build, w.created_at
from gradient.team_worker w
join gradient.team t on t.id = w.team
left join (
  gradient.team_project g
  join gradient.project p on p.id = g.project
) on g.team = w.team and g.workers;

comment on view gradient.worker_registration_overview is 'Workers and the projects they may serve, one row a pair; a worker of a team that no project grants has one row without a project.';
comment on column gradient.worker_registration_overview.team is 'The team the worker belongs to; null for a worker of the project itself.';
