-- Ends one build because a person says so, inside of one evaluation: it becomes Aborted, what needs it
-- there DependencyFailed, and the evaluation asks for it no more. Refused where that would take
-- anything from another evaluation in flight.
-- Locks: the turn; the evaluation; the shared build; its assignment; then as graph.after_status_move.
-- Returns: {status, dependents}: how many builds fell with it.
-- Errors: GR001 EvaluationFinished, WrongStatus, NeededByOtherEvaluation; GR002.
-- Execute: server
create or replace function graph.abort_build(p_evaluation bigint, p_build bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_evaluation gradient.evaluation_status;
  v_build gradient.derivation_build;
  v_needed_by bigint;
  v_failed bigint[];
begin
  perform graph.take_turn();
  select e.status into v_evaluation from gradient.evaluation e where e.id = p_evaluation for no key update;
  v_build := graph.named_build(p_evaluation, p_build);
  if not graph.is_active(v_evaluation) then
    raise exception using errcode = 'GR001',
      message = format('Build %s cannot be aborted in evaluation %s, which has ended.', p_build, p_evaluation),
      detail = format('EvaluationFinished: it is %s.', v_evaluation),
      hint = format('gradient build show %s', p_build);
  end if;
  if v_build.status not in ('Created', 'Queued', 'Building') then
    raise exception using errcode = 'GR001',
      message = format('Build %s is not one that can be aborted.', p_build),
      detail = format('WrongStatus: it is %s; only Created, Queued and Building ones can.', v_build.status),
      hint = format('gradient build show %s', p_build);
  end if;

  with recursive above (id) as (
    select p_build
    union
    select b.derivation
    from above a
    join gradient.derivation_dependency e on e.dependency = a.id
    join gradient.derivation_build b on b.derivation = e.derivation
    where b.status in ('Created', 'Queued', 'Building', 'FailedTransient') and not b.cache_available
  )
  select min(e.id) into v_needed_by
  from above a
  join gradient.build_job j on j.derivation_build = a.id and j.evaluation <> p_evaluation
  join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status);
  if v_needed_by is not null then
    raise exception using errcode = 'GR001',
      message = format('Build %s goes on: another evaluation needs it.', p_build),
      detail = format('NeededByOtherEvaluation: evaluation %s.', v_needed_by),
      hint = format('gradient eval show %s', v_needed_by);
  end if;

  update gradient.build_job j set aborted = true
  where j.evaluation = p_evaluation and j.derivation_build = p_build and not j.aborted;
  update gradient.derivation_build b
  set status = 'Aborted', prioritized = false, updated_at = v_now
  where b.derivation = p_build;
  insert into gradient.phase_event (subject_kind, subject, phase, at)
  values ('Build', p_build, 'Aborted', v_now);
  perform graph.request_abort(array(
    select o.id from gradient.dispatched_job o where o.job = 'build:' || p_build and o.finished_at is null));
  v_failed := graph.repair_dependency_failed(p_evaluation, graph.evaluation_closure(p_evaluation));
  perform graph.sync_ready(array[p_build]);
  perform graph.after_status_move(array[p_build] || v_failed, null);
  return jsonb_build_object('status', 'Aborted', 'dependents', cardinality(v_failed));
end
$fn$;

comment on function graph.abort_build(bigint, bigint) is
  'Aborts shared build p_build inside p_evaluation and fails what needs it there. Returns {status, dependents}. Errors GR001 (EvaluationFinished, WrongStatus, NeededByOtherEvaluation), GR002.';
