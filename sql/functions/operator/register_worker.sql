-- gradient.register_worker(project, worker, token_hash, ...) -> id
-- A worker of one project. The same worker may be registered with several projects, each with its
-- own token; a worker of a team may not.
-- Locks: the worker's id, so that it cannot become both at once.
-- Execute: operator, server

create function gradient.register_worker(
  p_project text,
  p_worker text,
  p_token_hash bytea,
  p_display_name text default null,
  p_enable_fetch boolean default true,
  p_enable_eval boolean default true,
  p_enable_build boolean default true)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_project constant bigint := gradient.project_id(p_project);
  v_registration bigint;
begin
  perform gradient.check_worker_id(p_worker);
  perform gradient.check_token_hash(p_token_hash);
  perform gradient.lock_worker_id(p_worker);
  if exists (select from gradient.team_worker w where w.worker_id = p_worker) then
    raise exception using errcode = 'GR007',
      message = format('Worker %s is a worker of a team, so it cannot be one of project %s too.', p_worker, p_project),
      hint = 'Choose another worker id, or grant the team''s workers to the project.';
  end if;

  insert into gradient.worker_registration
    (project, worker_id, token_hash, display_name, enable_fetch, enable_eval, enable_build, created_at)
  values
    (v_project, p_worker, p_token_hash, coalesce(p_display_name, p_worker),
     coalesce(p_enable_fetch, true), coalesce(p_enable_eval, true), coalesce(p_enable_build, true),
     gradient.current_time())
  on conflict (project, worker_id) do nothing
  returning id into v_registration;
  if v_registration is null then
    raise exception using errcode = 'GR007',
      message = format('Worker %s is registered with project %s already.', p_worker, p_project),
      hint = 'Choose another worker id.';
  end if;
  return v_registration;
end
$$;

comment on function gradient.register_worker(text, text, bytea, text, boolean, boolean, boolean) is
  'Registers a worker with a project and returns the id of the registration. p_token_hash: SHA-256 of its token. p_enable_*: what it may do for the project. '
  'Raises GR002 for an unknown project, GR005 for a malformed id or hash, GR007 when it is registered already or is a worker of a team.';
