-- Step 5 of the repair: settles need for everything the closure holds and queues what may start.
-- Locks: the turn; rows by derivation. Returns: the shared builds whose status moved.
create or replace function graph.promote_closure(p_closure bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
begin
  perform graph.take_turn();
  return graph.settle_need(p_closure, p_closure) || graph.promote(p_closure);
end
$fn$;

comment on function graph.promote_closure(bigint[]) is
  'Repair step 5: settles need over p_closure and queues every build in it that passes the queue conditions. Returns the shared builds whose status moved.';
