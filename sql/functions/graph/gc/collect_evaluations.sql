-- Has one task lose what it keeps no longer (graph.keep_evaluations): the first that can. The caller
-- calls again while something was deleted, so that each transaction is short.
-- Locks: none while no task has too many; then as graph.keep_evaluations.
-- Returns: how many evaluations were deleted.
-- Execute: server, operator
create or replace function graph.collect_evaluations()
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_task bigint;
  v_deleted bigint;
begin
  for v_task in
    select t.id
    from gradient.task t
    join gradient.evaluation e on e.task = t.id and not graph.is_active(e.status)
    group by t.id
    having count(*) > t.keep_evaluations
    order by t.id
  loop
    v_deleted := jsonb_array_length(graph.keep_evaluations(v_task) -> 'evaluations');
    if v_deleted > 0 then
      return v_deleted;
    end if;
  end loop;
  return 0;
end
$fn$;

comment on function graph.collect_evaluations() is
  'Deletes ended evaluations of the first task that has more than it keeps, at most twenty. Returns how many; 0: no task has any to lose.';
