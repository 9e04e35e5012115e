-- scheduler.refresh_team_projects()
-- A connected worker of a team serves what the team's grants say now: its token was that of the
-- team, so that a project granted later needs no new session. A project worker's tokens are checked
-- when it connects, and only then.
-- Locks: worker_connection rows by worker. Kicks: builds and evaluations when something changed.

create function scheduler.refresh_team_projects()
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform from gradient.worker_connection c order by c.worker_id for no key update;
  update gradient.worker_connection c
  set projects = g.projects
  from (
    select w.worker_id, coalesce(array_agg(s.project order by s.project) filter (where s.project is not null), '{}') as projects
    from gradient.team_worker w
    left join gradient.team_project t on t.team = w.team and t.workers
    left join scheduler.served_project s on s.project = t.project
    where w.enabled
    group by w.worker_id
  ) g
  where c.worker_id = g.worker_id
    and c.projects <> g.projects;
  if found then
    perform gradient.kick('builds');
    perform gradient.kick('evaluations');
  end if;
end
$$;

comment on function scheduler.refresh_team_projects() is
  'Brings the projects that connected workers of teams serve to what their teams are granted now.';
