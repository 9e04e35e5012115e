-- scheduler.served_project
-- The projects that workers may serve: those whose results have a cache to go to.
-- A subscription to read, or to a cache that is switched off, does not count.

create view scheduler.served_project as
select distinct s.project
from gradient.project_cache s
join gradient.cache c on c.id = s.cache
where s.mode in ('ReadWrite', 'WriteOnly') and c.active;

comment on view scheduler.served_project is
  'Projects with a subscription that writes into an active cache; no job of any other project is handed out.';
comment on column scheduler.served_project.project is 'The project.';
