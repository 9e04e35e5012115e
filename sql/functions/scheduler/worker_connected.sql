-- scheduler.worker_connected(worker, instance, projects, ...) -> connection number
-- Notes a session that was let in. It takes the place of any former connection of the worker, so
-- that nothing can be handed to the old socket any more. What the worker last said it can build is
-- kept until it says so again: a worker that reconnects is never one without architectures.
-- Locks: the worker_connection row.
-- Execute: server

create function scheduler.worker_connected(
  p_worker text,
  p_instance text,
  p_projects bigint[],
  p_can_fetch boolean,
  p_can_eval boolean,
  p_can_build boolean,
  p_version text)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_connection bigint;
begin
  if not exists (select from gradient.server_instance i where i.name = p_instance) then
    raise exception using errcode = 'GR002',
      message = format('There is no server instance %s.', p_instance),
      hint = 'A server calls scheduler.instance_started before it takes workers.';
  end if;

  insert into gradient.worker_connection as w
    (worker_id, instance, projects, can_fetch, can_eval, can_build, architectures,
     system_features, build_slots, eval_slots, version, connected_at)
  values
    (p_worker, p_instance, p_projects, p_can_fetch, p_can_eval, p_can_build, '{}', '{}', 0, 0,
     p_version, gradient.current_time())
  on conflict (worker_id) do update
  set connection = default,
      instance = excluded.instance,
      projects = excluded.projects,
      can_fetch = excluded.can_fetch,
      can_eval = excluded.can_eval,
      can_build = excluded.can_build,
      draining = false,
      version = excluded.version,
      connected_at = excluded.connected_at,
      disconnected_at = null
  returning w.connection into v_connection;

  delete from gradient.offer_score s where s.worker_id = p_worker;
  perform gradient.kick('waiting');
  return v_connection;
end
$$;

comment on function scheduler.worker_connected(text, text, bigint[], boolean, boolean, boolean, text) is
  'Notes that a worker is connected to a server, for the projects and with the abilities that authenticate_worker granted; returns the number of the connection, which every later call names. Raises GR002 for an unknown server.';
