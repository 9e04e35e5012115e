-- gradient.project_id(name) -> id
-- The project of that name, for functions that people call with names.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.project_id(p_name text)
  returns bigint
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_project bigint;
begin
  select p.id into v_project from gradient.project p where p.name = p_name;
  if v_project is null then
    raise exception using errcode = 'GR002',
      message = format('There is no project %L.', p_name),
      hint = 'select name from gradient.project_overview;';
  end if;
  return v_project;
end
$$;

comment on function gradient.project_id(text) is
  'The id of a project by its name. Raises GR002 when there is none.';
