-- Deletes evaluations that have ended, and what follows from it: their entry points want nothing any
-- more, what lost its only name and is still wanted is named by an evaluation that needs it, and the
-- rest leaves the queue. Attempts and their logs outlive them. One that is in flight, or that a
-- worker still holds, survives.
-- p_evaluations: bounded by the caller.
-- Locks: the turn; evaluations by id; shared builds by derivation. Returns: {evaluations: ids
-- deleted, adopted: shared builds named anew}. Idempotent.
-- Execute: server, operator
create or replace function graph.gc_evaluations(p_evaluations bigint[])
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_gone bigint[];
  v_named bigint[];
  v_entries bigint[];
  v_need record;
  v_adopted bigint[];
begin
  perform graph.take_turn();
  perform from gradient.evaluation e where e.id = any (p_evaluations) order by e.id for update;
  v_gone := array(
    select e.id from gradient.evaluation e
    where e.id = any (p_evaluations) and not graph.is_active(e.status)
      and not exists (
        select from gradient.dispatched_job o where o.job = 'eval:' || e.id and o.finished_at is null)
    order by e.id);
  v_named := array(
    select distinct j.derivation_build from gradient.build_job j where j.evaluation = any (v_gone) order by 1);
  v_entries := array(
    select distinct p.derivation from gradient.entry_point p where p.evaluation = any (v_gone) order by 1);

  delete from gradient.evaluation e where e.id = any (v_gone);
  delete from gradient.evaluation_shared_build_delta d where d.evaluation = any (v_gone);
  delete from gradient.phase_event v where v.subject_kind = 'Evaluation' and v.subject = any (v_gone);

  v_need := graph.update_need(v_entries);
  v_adopted := graph.adopt_unnamed(v_named);
  -- What is an entry point no more may be skipped, also if it was unwanted all along.
  perform graph.settle_need(v_need.gained, v_need.lost || v_entries);
  perform graph.sync_ready(v_named);
  perform graph.check_evaluations_done(array(
    select distinct j.evaluation
    from gradient.build_job j
    join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
    where j.derivation_build = any (v_need.lost)));
  return jsonb_build_object('evaluations', to_jsonb(v_gone), 'adopted', cardinality(v_adopted));
end
$fn$;

comment on function graph.gc_evaluations(bigint[]) is
  'Deletes those of p_evaluations that have ended; builds and attempts stay, and what others still want keeps a name. Returns {evaluations: ids deleted, adopted: shared builds named anew}.';
