-- What follows from an answer of upstream caches: need below the answered builds, the queue, the
-- names of what is newly wanted, the verdicts.
-- Locks: under the turn; rows by derivation. Returns: the shared builds that are wanted now, walked
-- and not probed yet: the next to be asked about.
create or replace function graph.follow_probe(p_builds bigint[], p_released bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_need record;
begin
  v_need := graph.update_need(p_builds);
  perform graph.settle_need(v_need.gained, v_need.lost || p_builds);
  perform graph.promote(p_builds || coalesce(p_released, '{}'));
  perform graph.sync_ready(p_builds);
  perform graph.fail_blocked(p_builds || v_need.gained);
  perform graph.adopt_unnamed(p_builds);
  perform graph.check_evaluations_done(array(
    select distinct j.evaluation
    from gradient.build_job j
    join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
    where j.derivation_build = any (p_builds || v_need.lost)));
  return array(
    select b.derivation
    from gradient.derivation_build b
    join gradient.derivation d on d.id = b.derivation and d.walked
    where b.derivation = any (v_need.gained) and b.wanted and not b.probed
    order by 1);
end
$fn$;

comment on function graph.follow_probe(bigint[], bigint[]) is
  'After upstream caches answered for p_builds, and the inputs of p_released became fetchable: updates need, queue, names and verdicts. Returns the shared builds to ask about next.';
