-- Takes an evaluation that ended Failed or Aborted back to Building, because a person tries it or one
-- of its builds again. What it names stays; nothing is walked. Its counters stood still while it had
-- ended, so they are counted anew.
-- Locks: under the turn; the evaluation's row. Returns: whether it had ended; false when it is Building
-- or Waiting for builds already.
-- Errors: GR001 EvaluationFinished: it is Completed, or ended before it came to its builds;
-- NewerEvaluation: its task has a newer evaluation, or another one in flight; WrongStatus: it is still
-- being evaluated. GR002 no such evaluation.
create or replace function graph.reopen_evaluation(p_evaluation bigint)
  returns boolean
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_evaluation gradient.evaluation;
  v_newer bigint;
begin
  select * into v_evaluation from gradient.evaluation e where e.id = p_evaluation for no key update;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  if v_evaluation.status in ('Building', 'Waiting') and v_evaluation.building_started_at is not null then
    return false;
  end if;
  if graph.is_active(v_evaluation.status) then
    raise exception using errcode = 'GR001',
      message = format('Evaluation %s is not at its builds yet.', p_evaluation),
      detail = format('WrongStatus: it is %s.', v_evaluation.status),
      hint = format('gradient eval watch %s', p_evaluation);
  end if;
  if v_evaluation.status = 'Completed' or v_evaluation.building_started_at is null then
    raise exception using errcode = 'GR001',
      message = format('Evaluation %s has ended and cannot be tried again.', p_evaluation),
      detail = case v_evaluation.status
        when 'Completed' then 'EvaluationFinished: it is Completed.'
        else format('EvaluationFinished: it is %s, and never came to its builds.', v_evaluation.status) end,
      hint = 'Start a new evaluation of its task: gradient eval start.';
  end if;
  select max(e.id) into v_newer
  from gradient.evaluation e
  where e.task = v_evaluation.task and e.id <> p_evaluation
    and (e.id > p_evaluation or graph.is_active(e.status));
  if v_newer is not null then
    raise exception using errcode = 'GR001',
      message = format('Evaluation %s has been overtaken and cannot be tried again.', p_evaluation),
      detail = format('NewerEvaluation: evaluation %s of the same task.', v_newer),
      hint = format('gradient eval show %s', v_newer);
  end if;

  update gradient.evaluation e
  set status = 'Building', finished_at = null, updated_at = v_now
  where e.id = p_evaluation;
  perform graph.recount_evaluations(array[p_evaluation]);
  insert into gradient.phase_event (subject_kind, subject, phase, at, detail)
  values ('Evaluation', p_evaluation, 'Building', v_now, jsonb_build_object('reopened', v_evaluation.status));
  perform gradient.kick('evaluations');
  return true;
end
$fn$;

comment on function graph.reopen_evaluation(bigint) is
  'Takes p_evaluation from Failed or Aborted back to Building; returns false when it is at its builds already. Errors GR001 (EvaluationFinished, NewerEvaluation, WrongStatus), GR002.';
