-- The verdict. An evaluation ends when nothing it names can still be wanted. The counters can only
-- answer "not finished yet": a zero is confirmed by the rows, and a contradiction counts anew.
-- Locks: under the turn; evaluations by id. Returns: the evaluations that ended.
create or replace function graph.check_evaluations_done(p_evaluations bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_candidates bigint[];
  v_drifted bigint[];
  v_done bigint[];
begin
  if cardinality(p_evaluations) is null or cardinality(p_evaluations) = 0 then
    return '{}';
  end if;
  select array_agg(e.id order by e.id) into v_candidates
  from gradient.evaluation e
  where e.id = any (p_evaluations)
    and (e.status = 'Building'
         or (e.status = 'Waiting' and e.waiting_reason ->> 'kind' in ('workers', 'graph_stuck')))
    and e.active_shared_builds + coalesce((
      select sum(d.active) from gradient.evaluation_shared_build_delta d where d.evaluation = e.id), 0) <= 0;
  if v_candidates is null then
    return '{}';
  end if;
  perform from gradient.evaluation e where e.id = any (v_candidates) order by e.id for no key update;

  -- Read anew after the wait: until then the counters may have been right.
  select array_agg(e.id order by e.id) into v_candidates
  from gradient.evaluation e
  where e.id = any (v_candidates) and graph.is_active(e.status)
    and e.active_shared_builds + coalesce((
      select sum(d.active) from gradient.evaluation_shared_build_delta d where d.evaluation = e.id), 0) <= 0;

  select array_agg(c.id) into v_drifted
  from unnest(coalesce(v_candidates, '{}')) as c (id)
  where exists (
    select
    from gradient.build_job j
    join gradient.derivation_build b on b.derivation = j.derivation_build
    where j.evaluation = c.id and graph.blocks_evaluation(b.status, b.wanted));
  if v_drifted is not null then
    insert into gradient.drift (at, counter, evaluation, stored, context)
    select gradient.current_time(), 'active_shared_builds', u.id, 0, 'check_evaluations_done'
    from unnest(v_drifted) as u (id);
    perform graph.recount_evaluations(v_drifted);
  end if;

  select coalesce(array_agg(c.id), '{}') into v_done
  from unnest(v_candidates) as c (id)
  where c.id <> all (coalesce(v_drifted, '{}'));
  if cardinality(v_done) = 0 then
    return '{}';
  end if;

  perform graph.claim_closures(v_done);
  perform graph.recount_evaluations(v_done);
  update gradient.evaluation e
  set status = case
        when e.failed_shared_builds > 0
          or exists (select from gradient.evaluation_message m where m.evaluation = e.id and m.level = 'Error')
        then 'Failed'::gradient.evaluation_status else 'Completed' end,
      waiting_reason = null,
      finished_at = gradient.current_time(),
      updated_at = gradient.current_time()
  where e.id = any (v_done);
  insert into gradient.phase_event (subject_kind, subject, phase, at)
  select 'Evaluation', e.id, e.status::text, gradient.current_time()
  from gradient.evaluation e where e.id = any (v_done);
  perform gradient.kick('evaluations');
  return v_done;
end
$fn$;

comment on function graph.check_evaluations_done(bigint[]) is
  'Ends those of p_evaluations that are Building (or Waiting for workers or a stuck graph) and name nothing that can still be wanted: Failed when a named shared build failed or an Error message exists, else Completed. Returns them.';
