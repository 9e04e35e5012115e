-- scheduler.instance_started(name, version, address) -> lock key
-- A server starts, or starts again under its name. It then holds the session lock (644, lock key)
-- as long as it lives, on a direct connection, and recovers what it left behind with
-- scheduler.recover_interrupted_work before it takes workers.
-- Locks: the server_instance row.
-- Execute: server

create function scheduler.instance_started(p_name text, p_version text, p_address text)
  returns integer
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_lock_key integer;
begin
  if p_name is null or p_name !~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$' then
    raise exception using errcode = 'GR005',
      message = format('A server instance cannot be named %L.', p_name),
      hint = 'Use letters, digits, dots, colons, dashes and underscores, at most 128 characters.';
  end if;

  insert into gradient.server_instance as i (name, version, address, started_at)
  values (p_name, p_version, p_address, gradient.current_time())
  on conflict (name) do update
  set version = excluded.version,
      address = excluded.address,
      started_at = excluded.started_at,
      draining = false
  returning i.lock_key into v_lock_key;

  perform scheduler.instance_seen(p_name);
  return v_lock_key;
end
$$;

comment on function scheduler.instance_started(text, text, text) is
  'Records a server that starts and returns the second key of its advisory lock (644, key), which it holds while it lives. Raises GR005 for a malformed name.';
