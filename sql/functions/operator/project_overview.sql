-- gradient.project_overview
-- Every project with what belongs to it.

create view gradient.project_overview as
select
  p.id,
  p.name,
  p.display_name,
  p.public,
  (select count(*) from gradient.task t where t.project = p.id) as tasks,
  array(
    select c.name || case s.mode when 'ReadWrite' then '' when 'ReadOnly' then ' (read)' else ' (write)' end
    from gradient.project_cache s
    join gradient.cache c on c.id = s.cache
    where s.project = p.id
    order by c.name) as caches,
  exists (select from scheduler.served_project s where s.project = p.id) as served,
  array(
    select k.public_key from gradient.project_trusted_key k
    where k.project = p.id order by k.public_key) as trusted_keys,
  p.created_at
from gradient.project p;

comment on view gradient.project_overview is 'Projects for people: tasks, caches, trusted keys.';
comment on column gradient.project_overview.caches is 'Subscribed caches; those that are only read or only written say so.';
comment on column gradient.project_overview.served is 'Whether workers take its jobs: it has an active cache to write to.';
