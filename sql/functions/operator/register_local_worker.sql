-- gradient.register_local_worker(worker, token_hash) -> id
-- The worker on the server's own host: one of the team "server", which serves every project and is
-- granted to every new one. Registered again it gets the new token, so that a lost one is no loss.
-- Locks: the worker's id. Kicks: waiting.
-- Execute: operator, server

create function gradient.register_local_worker(p_worker text, p_token_hash bytea)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_team bigint;
  v_id bigint;
begin
  perform gradient.check_worker_id(p_worker);
  perform gradient.check_token_hash(p_token_hash);
  perform gradient.lock_worker_id(p_worker);
  if exists (select from gradient.worker_registration r where r.worker_id = p_worker) then
    raise exception using errcode = 'GR007',
      message = format('Worker %s is registered with a project, so it cannot be a worker of the team server too.', p_worker),
      hint = 'Choose another worker id.';
  end if;

  insert into gradient.team as t (name, display_name, new_projects_workers, created_at)
  values ('server', 'Server', true, gradient.current_time())
  on conflict (name) do update set new_projects_workers = true
  returning t.id into v_team;

  insert into gradient.team_worker as w (team, worker_id, token_hash, display_name, created_at)
  values (v_team, p_worker, p_token_hash, p_worker, gradient.current_time())
  on conflict (worker_id) do update set token_hash = excluded.token_hash
  where w.team = excluded.team
  returning w.id into v_id;
  if v_id is null then
    raise exception using errcode = 'GR007',
      message = format('Worker %s belongs to another team.', p_worker),
      hint = 'Choose another worker id.';
  end if;

  insert into gradient.team_project as g (team, project, workers)
  select v_team, p.id, true
  from gradient.project p
  on conflict (team, project) do update set workers = true
  where not g.workers;
  perform scheduler.refresh_team_projects();
  perform gradient.kick('waiting');
  return v_id;
end
$$;

comment on function gradient.register_local_worker(text, bytea) is
  'Makes a worker of the team server, granted to every project, or replaces its token; returns its id. p_token_hash: SHA-256 of the token. Raises GR005 for a malformed id or hash, GR007 when the id is another worker''s.';
