-- What follows from a move of shared builds that is not a mere promotion: need, and the verdicts of
-- the evaluations that name them.
-- Locks: under the turn. Returns: nothing.
create or replace function graph.after_status_move(p_moved bigint[], p_released bigint[])
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_need record;
  v_settled bigint[];
begin
  v_need := graph.update_need(p_moved);
  v_settled := graph.settle_need(v_need.gained, v_need.lost || p_moved);
  perform graph.promote(p_moved || coalesce(p_released, '{}'));
  perform graph.sync_ready(p_moved);
  perform graph.check_evaluations_done(array(
    select distinct j.evaluation
    from gradient.build_job j
    join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
    where j.derivation_build = any (p_moved || v_need.lost || v_settled)));
end
$fn$;

comment on function graph.after_status_move(bigint[], bigint[]) is
  'After the status of p_moved changed, and the inputs of p_released became fetchable: updates need, queues what may start, ends evaluations that are done.';
