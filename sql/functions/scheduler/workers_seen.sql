-- scheduler.workers_seen(seen)
-- When the server last heard from each of its workers, and their live metrics, in one statement.
-- The table is unlogged: an idle system writes nothing that is logged.
-- Locks: worker_seen rows, by worker.
-- Execute: server

create function scheduler.workers_seen(p_seen jsonb)
  returns void
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  insert into gradient.worker_seen as w (worker_id, last_seen, metrics)
  select s.worker, coalesce(s.at, gradient.current_time()), coalesce(s.metrics, '{}')
  from jsonb_to_recordset(p_seen) as s(worker text, at timestamptz, metrics jsonb)
  join gradient.worker_connection c on c.worker_id = s.worker
  order by s.worker
  on conflict (worker_id) do update
  set last_seen = greatest(w.last_seen, excluded.last_seen),
      metrics = excluded.metrics
$$;

comment on function scheduler.workers_seen(jsonb) is
  'Notes when workers were last heard, with their metrics: an array of {worker, at, metrics}, each worker once. at null is now. Workers that never connected are left out.';
