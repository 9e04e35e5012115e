-- scheduler.build_pass(instance) -> what was due
-- Everything that only time brings about: transient failures whose backoff has passed are queued
-- again, the jobs of workers that stayed away are returned, and the evaluations' counters folded.
-- Locks: none while nothing is due; then the turn.
-- Returns: {requeued, returned, folded}.
-- Execute: server, operator

create function scheduler.build_pass(p_instance text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_requeued bigint := 0;
begin
  if exists (
    select from gradient.derivation_build b where b.retry_at <= gradient.current_time())
  then
    v_requeued := graph.requeue();
  end if;
  return jsonb_build_object(
    'requeued', v_requeued,
    'returned', scheduler.return_silent_workers(p_instance),
    'folded', graph.fold_evaluation_counters());
end
$$;

comment on function scheduler.build_pass(text) is
  'One build pass of a server: requeues transient failures whose retry is due and returns the jobs of lost workers and folds the evaluation counters. Returns the three numbers.';
