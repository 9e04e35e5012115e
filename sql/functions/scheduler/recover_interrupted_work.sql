-- scheduler.recover_interrupted_work(instance) -> what was recovered
-- Steps 1 to 4 of the customer's startup recovery for the work of one server, which starts again
-- under its name or was found dead: its open assignments close as Abandoned, their attempts turn
-- Aborted, their builds are queued again and un-queued where a gate fails, their evaluations are
-- queued again. Interrupted work is never failed work. A worker that comes back with one of these
-- jobs is told to stop it. An assignment whose worker meanwhile went on with another server is not
-- this one's any more.
-- Locks: the turn, worker_connection rows by worker; the caller holds the lock of the instance. Kicks: builds, evaluations, waiting.
-- Returns: {assignments, builds, evaluations, workers}.
-- Execute: server, operator

create function scheduler.recover_interrupted_work(p_instance text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_open bigint[];
  v_builds bigint;
  v_evaluations bigint;
  v_workers bigint;
begin
  if not exists (select from gradient.server_instance i where i.name = p_instance) then
    raise exception using errcode = 'GR002',
      message = format('There is no server instance %s.', p_instance),
      hint = 'select name from gradient.server_instance;';
  end if;
  perform graph.take_turn();

  -- First the connections: after this nothing more is assigned through them.
  perform from gradient.worker_connection w
  where w.instance = p_instance and w.disconnected_at is null
  order by w.worker_id for no key update;
  update gradient.worker_connection w
  set disconnected_at = gradient.current_time()
  where w.instance = p_instance
    and w.disconnected_at is null;
  get diagnostics v_workers = row_count;

  select array_agg(d.id order by d.id),
         count(*) filter (where d.kind = 'Build'),
         count(*) filter (where d.kind = 'Evaluation')
  into v_open, v_builds, v_evaluations
  from gradient.dispatched_job d
  where d.instance = p_instance
    and d.finished_at is null;

  if v_open is not null then
    perform graph.return_assignments(v_open, 'server_restart');
    perform gradient.kick('builds');
    perform gradient.kick('evaluations');
  end if;
  if v_open is not null or v_workers > 0 then
    perform gradient.kick('waiting');
  end if;

  return jsonb_build_object(
    'assignments', coalesce(cardinality(v_open), 0),
    'builds', v_builds,
    'evaluations', v_evaluations,
    'workers', v_workers);
end
$$;

comment on function scheduler.recover_interrupted_work(text) is
  'Closes what a server left open when it died and queues it again: returns the numbers of assignments, builds, evaluations and connections. Safe to call twice. Raises GR002 when there is no such server.';
