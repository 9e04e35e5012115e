-- gradient.task_id(project, task) -> id
-- The task of that name in a project, for functions that people call with names.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.task_id(p_project text, p_task text)
  returns bigint
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_project constant bigint := gradient.project_id(p_project);
  v_task bigint;
begin
  select t.id into v_task
  from gradient.task t
  where t.project = v_project and t.name = p_task;
  if v_task is null then
    raise exception using errcode = 'GR002',
      message = format('There is no task %L in project %s.', p_task, p_project),
      hint = format('select name from gradient.task_overview where project = %L;', p_project);
  end if;
  return v_task;
end
$$;

comment on function gradient.task_id(text, text) is
  'The id of a task by the names of its project and its own. Raises GR002 when there is none.';
