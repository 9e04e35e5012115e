-- scheduler.take_instance_lock(name) -> whether it was free
-- Takes the lock of a server instance, (644, its lock key), for the calling session: a server its
-- own while it lives, and that of a dead one while it recovers its work, so that two never do.
-- Given back when the session ends. Call it on a direct connection, never through a pooler.
-- Locks: the advisory lock, without waiting.
-- Returns: true when the session holds the lock now; false when another does, or there is no such
-- instance.
-- Execute: server

create function scheduler.take_instance_lock(p_name text)
  returns boolean
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_key integer;
begin
  select i.lock_key into v_key
  from gradient.server_instance i
  where i.name = p_name;
  return v_key is not null and pg_try_advisory_lock(644, v_key);
end
$$;

comment on function scheduler.take_instance_lock(text) is
  'Takes the session lock of a server instance without waiting; returns whether the calling session holds it now. It falls free with the session.';
