-- gradient.create_project(name, display_name, public) -> id
-- A new project. It is served by the workers of every team whose workers go to new projects.
-- Locks: none beyond its rows. Kicks: waiting.
-- Execute: operator, server

create function gradient.create_project(
  p_name text,
  p_display_name text default null,
  p_public boolean default false)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_project bigint;
begin
  perform gradient.check_name('project', p_name);
  insert into gradient.project (name, display_name, public, created_at)
  values (p_name, coalesce(p_display_name, p_name), coalesce(p_public, false), gradient.current_time())
  on conflict (name) do nothing
  returning id into v_project;
  if v_project is null then
    raise exception using errcode = 'GR007',
      message = format('There is a project %s already.', p_name),
      hint = format('select * from gradient.project_overview where name = %L;', p_name);
  end if;

  insert into gradient.team_project (team, project, workers)
  select t.id, v_project, true
  from gradient.team t
  where t.new_projects_workers;
  perform scheduler.refresh_team_projects();
  perform gradient.kick('waiting');
  return v_project;
end
$$;

comment on function gradient.create_project(text, text, boolean) is
  'Makes a project and returns its id. p_display_name: null is the name. p_public: whether anybody may see it. Raises GR005 for a malformed name, GR007 when the name is taken.';
