-- scheduler.return_silent_workers(instance) -> assignments returned
-- A worker whose session ended and that was not heard for worker_grace has lost its jobs: they go
-- back to the queue. A session that is open measures silence itself and ends. A worker that is not
-- known at all holds nothing.
-- Locks: none while nothing is due; then the turn.
-- Execute: server, operator

create function scheduler.return_silent_workers(p_instance text)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_due bigint[];
begin
  -- Looked at once without the turn, since in a quiet system nothing is due; what counts is what
  -- is seen after the wait for the turn: the worker may have come back meanwhile.
  if not exists (select from scheduler.lost_assignments(p_instance)) then
    return 0;
  end if;
  perform graph.take_turn();
  select array_agg(l.assignment) into v_due from scheduler.lost_assignments(p_instance) l;
  if v_due is null then
    return 0;
  end if;
  return graph.return_assignments(v_due, 'worker_lost');
end
$$;

comment on function scheduler.return_silent_workers(text) is
  'Returns the jobs of workers that left a server longer than the setting worker_grace ago and did not come back; null is every server. Returns how many assignments.';
