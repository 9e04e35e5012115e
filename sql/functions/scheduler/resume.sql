-- scheduler.resume(worker, connection, assignments) -> {keep, stop}
-- A worker that reconnects names what it still runs. Open assignments of its own go on, from now
-- on with the server it came to; the others it has to stop. What it does not name it has lost:
-- those jobs go back to the queue at once.
-- Locks: the turn, then the worker_connection row, then dispatched_job rows.
-- Execute: server

create function scheduler.resume(p_worker text, p_connection bigint, p_assignments bigint[])
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_instance text;
  v_keep bigint[];
  v_lost bigint[];
begin
  perform graph.take_turn();

  select w.instance into v_instance
  from gradient.worker_connection w
  where w.worker_id = p_worker
    and w.connection = p_connection
    and w.disconnected_at is null
  for share;
  if not found then
    raise exception using errcode = 'GR003',
      message = format('Connection %s of worker %s was replaced or closed.', p_connection, p_worker);
  end if;

  select coalesce(array_agg(d.id order by d.id) filter (where d.id = any(p_assignments)), '{}'),
         coalesce(array_agg(d.id order by d.id) filter (where d.id <> all(p_assignments)), '{}')
  into v_keep, v_lost
  from gradient.dispatched_job d
  where d.worker_id = p_worker
    and d.finished_at is null;

  update gradient.dispatched_job d
  set instance = v_instance
  where d.id = any(v_keep)
    and d.instance <> v_instance;

  if v_lost <> '{}' then
    perform graph.return_assignments(v_lost, 'worker_lost');
  end if;

  return jsonb_build_object(
    'keep', to_jsonb(v_keep),
    'stop', to_jsonb(array(
      select distinct a.id from unnest(p_assignments) as a(id)
      where a.id <> all(v_keep) order by a.id)));
end
$$;

comment on function scheduler.resume(text, bigint, bigint[]) is
  'Settles which assignments of a reconnected worker go on. p_assignments: those it is running, empty after a fresh start. Returns keep (still its own) and stop (closed, or not its own). Open ones it does not name are returned as worker_lost. Raises GR003 when the connection is not the worker''s any more.';
