-- gradient.server_overview
-- Every server that was ever started on this database. One is Gone when it gave no sign of life for
-- the setting instance_grace; what it left open is then recovered by another.

create view gradient.server_overview as
select
  i.name as instance,
  case
    when greatest(i.started_at, s.last_seen)
         <= gradient.current_time() - gradient.setting_int('instance_grace') * interval '1 second' then 'Gone'
    when i.draining then 'Draining'
    else 'Running' end as state,
  i.version,
  i.address,
  i.started_at,
  s.last_seen,
  (select count(*) from gradient.worker_connection w
   where w.instance = i.name and w.disconnected_at is null) as workers,
  (select count(*) from gradient.dispatched_job d
   where d.instance = i.name and d.finished_at is null) as assignments
from gradient.server_instance i
left join gradient.instance_seen s on s.instance = i.name;

comment on view gradient.server_overview is 'Servers for people: state, version, address, connected workers and open assignments.';
comment on column gradient.server_overview.state is 'Running, Draining (hands out nothing more) or Gone.';
