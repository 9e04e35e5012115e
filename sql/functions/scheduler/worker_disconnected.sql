-- scheduler.worker_disconnected(worker, connection)
-- Notes that the session ended. The worker's jobs stay its own until the grace has passed: it goes
-- on building and may come back to any server. A connection that was replaced says nothing.
-- Locks: the worker_connection row. Kicks: waiting.
-- Execute: server

create function scheduler.worker_disconnected(p_worker text, p_connection bigint)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  update gradient.worker_connection w
  set disconnected_at = gradient.current_time()
  where w.worker_id = p_worker
    and w.connection = p_connection
    and w.disconnected_at is null;
  if found then
    delete from gradient.offer_score s where s.worker_id = p_worker;
    perform gradient.kick('waiting');
  end if;
end
$$;

comment on function scheduler.worker_disconnected(text, bigint) is
  'Notes the end of a worker''s connection; nothing when it was replaced or ended before. Its jobs are returned by scheduler.return_silent_workers once worker_grace has passed.';
