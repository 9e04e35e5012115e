-- Takes jobs back that their workers will not finish: nothing failed, nothing is charged. Builds are
-- queued again where they still may start, evaluations are queued; an evaluation that has lost as
-- many workers as setting eval.max_lost_workers says is failed with that reason.
-- p_outcome_class: worker_lost, worker_stopping, server_restart, rejected or aborted.
-- Locks: the turn; assignments by id; shared builds by derivation; evaluations by id.
-- Returns: how many assignments were open. Idempotent. Errors: GR005 no such outcome class.
-- Execute: server
create or replace function graph.return_assignments(p_assignments bigint[], p_outcome_class text)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_open bigint[];
  v_builds bigint[];
  v_evaluations bigint[];
  v_lost bigint;
begin
  perform graph.take_turn();
  perform graph.outcome_class(p_outcome_class);
  perform from gradient.dispatched_job o where o.id = any (p_assignments) order by o.id for update;

  with closed as (
    update gradient.dispatched_job o
    set finished_at = v_now, outcome = 'Abandoned', outcome_class = p_outcome_class
    where o.id = any (p_assignments) and o.finished_at is null
    returning o.id, o.kind, o.derivation_build, o.evaluation
  )
  select coalesce(array_agg(c.id), '{}'),
         coalesce(array_agg(c.derivation_build) filter (where c.kind = 'Build'), '{}'),
         coalesce(array_agg(c.evaluation) filter (where c.kind = 'Evaluation'), '{}')
  into v_open, v_builds, v_evaluations
  from closed c;
  if cardinality(v_open) = 0 then
    return 0;
  end if;

  update gradient.build_attempt a
  set outcome = 'Aborted', outcome_class = p_outcome_class, build_finished_at = v_now
  where a.dispatched_job = any (v_open) and a.outcome = 'Running';

  perform graph.lock_shared_builds(null, v_builds);
  perform from gradient.derivation_build b where b.derivation = any (v_builds) order by b.derivation for no key update;
  update gradient.derivation_build b
  set status = 'Queued', updated_at = v_now
  where b.derivation = any (v_builds) and b.status = 'Building';
  perform graph.unpromote(v_builds);
  perform graph.after_status_move(v_builds, null);
  perform graph.fail_blocked(v_builds);

  perform from gradient.evaluation e where e.id = any (v_evaluations) order by e.id for no key update;
  with moved as (
    update gradient.evaluation e
    set status = 'Queued', updated_at = v_now
    where e.id = any (v_evaluations) and e.status in ('Fetching', 'EvaluatingFlake', 'EvaluatingDerivation')
    returning e.id
  )
  insert into gradient.phase_event (subject_kind, subject, phase, at, detail)
  select 'Evaluation', m.id, 'Queued', v_now, jsonb_build_object('outcome_class', p_outcome_class)
  from moved m;

  if p_outcome_class = 'worker_lost' then
    v_lost := gradient.setting_int('eval.max_lost_workers');
    perform graph.fail_evaluation(k.evaluation,
      format('Every worker that took this evaluation was lost (%s times).', k.lost), 'scheduler')
    from (
      select o.evaluation, count(*) as lost
      from gradient.dispatched_job o
      join gradient.evaluation e on e.id = o.evaluation and e.status = 'Queued'
      where o.evaluation = any (v_evaluations) and o.kind = 'Evaluation' and o.outcome_class = 'worker_lost'
      group by o.evaluation
      having count(*) >= v_lost
    ) as k;
  end if;
  perform gradient.kick('evaluations');
  return cardinality(v_open);
end
$fn$;

comment on function graph.return_assignments(bigint[], text) is
  'Closes the open ones of p_assignments as Abandoned with p_outcome_class and queues their jobs again, uncharged. Returns how many were open. Error GR005: no such class.';
