-- scheduler.worker_draining(worker, connection)
-- The worker is about to stop: it is given nothing more on this connection.
-- Locks: the worker_connection row. Kicks: waiting.
-- Execute: server

create function scheduler.worker_draining(p_worker text, p_connection bigint)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  update gradient.worker_connection w
  set draining = true
  where w.worker_id = p_worker
    and w.connection = p_connection
    and not w.draining;
  if found then
    perform gradient.kick('waiting');
  end if;
end
$$;

comment on function scheduler.worker_draining(text, bigint) is
  'Notes that a worker announced its stop; it is given no more jobs until it connects again. Nothing when the connection was replaced.';
