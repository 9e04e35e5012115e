-- Asks the workers of open assignments to stop. The assignments stay open until they answer, so
-- that no job is out twice.
-- Locks: the assignments by id. Returns: how many were asked. Kicks aborts.
create or replace function graph.request_abort(p_assignments bigint[])
  returns bigint
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_count bigint;
begin
  perform from gradient.dispatched_job o where o.id = any (p_assignments) order by o.id for update;
  update gradient.dispatched_job o
  set abort_requested_at = gradient.current_time()
  where o.id = any (p_assignments) and o.finished_at is null and o.abort_requested_at is null;
  get diagnostics v_count = row_count;
  if v_count > 0 then
    perform gradient.kick('aborts');
  end if;
  return v_count;
end
$fn$;

comment on function graph.request_abort(bigint[]) is
  'Asks the workers of the open assignments p_assignments to stop. Returns how many were newly asked.';
