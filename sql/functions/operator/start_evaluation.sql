-- gradient.start_evaluation(project, task, revision, wildcard) -> id
-- Queues an evaluation of a task. What the task says now is noted on the evaluation. A task has one
-- evaluation in flight; what happens to an earlier one is the task's concurrency: SoftAbort and
-- HardAbort abort it first, Skip refuses the new one, All lets both run. Without a cache to write
-- to the evaluation waits for one.
-- Locks: the turn, then the task's row. Kicks: evaluations, waiting.
-- Execute: operator, server

create function gradient.start_evaluation(
  p_project text,
  p_task text,
  p_revision text default null,
  p_wildcard text default null)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_task gradient.task;
  v_active bigint;
  v_served boolean;
  v_evaluation bigint;
  v_now timestamptz;
begin
  if p_revision !~ '^[^-[:space:]][^[:space:]]*$' then
    raise exception using errcode = 'GR005',
      message = format('%L is not a commit, branch or tag.', p_revision);
  end if;
  if btrim(p_wildcard) = '' then
    raise exception using errcode = 'GR005',
      message = format('The evaluation of task %s names no attributes to build.', p_task),
      hint = 'For example packages.x86_64-linux.*, or leave it out to use the task''s.';
  end if;

  perform graph.take_turn();
  select t.* into v_task
  from gradient.task t
  where t.id = gradient.task_id(p_project, p_task)
  for no key update;
  if not v_task.active then
    raise exception using errcode = 'GR001',
      message = format('Task %s of project %s is not active.', p_task, p_project);
  end if;

  select e.id into v_active
  from gradient.evaluation e
  where e.task = v_task.id
    and graph.is_active(e.status)
    and not e.concurrent;
  if v_active is not null then
    if v_task.concurrency = 'Skip' then
      raise exception using errcode = 'GR001',
        message = format('Task %s of project %s has evaluation %s in flight and skips new ones.', p_task, p_project, v_active),
        hint = format('Wait for it, or: select gradient.abort_evaluation(%s);', v_active);
    elsif v_task.concurrency in ('SoftAbort', 'HardAbort') then
      perform graph.abort_evaluation(v_active, 'A newer evaluation of the task was started.');
    end if;
  end if;

  v_served := exists (select from scheduler.served_project s where s.project = v_task.project);
  v_now := gradient.current_time();
  insert into gradient.evaluation
    (task, repository, revision, wildcard, status, waiting_reason, previous, concurrent,
     created_at, updated_at)
  values
    (v_task.id, v_task.repository, coalesce(p_revision, v_task.revision),
     coalesce(p_wildcard, v_task.wildcard),
     (case when v_served then 'Queued' else 'Waiting' end)::gradient.evaluation_status,
     case when not v_served then jsonb_build_object('kind', 'no_cache') end,
     (select max(e.id) from gradient.evaluation e where e.task = v_task.id),
     v_task.concurrency = 'All', v_now, v_now)
  returning id into v_evaluation;

  insert into gradient.evaluation_flake_input_override (evaluation, input_name, url)
  select v_evaluation, o.input_name, o.url
  from gradient.task_flake_input_override o
  where o.task = v_task.id;

  insert into gradient.phase_event (subject_kind, subject, phase, at)
  values ('Evaluation', v_evaluation, case when v_served then 'Queued' else 'Waiting' end, v_now);

  perform gradient.kick('evaluations');
  perform gradient.kick('waiting');
  return v_evaluation;
end
$$;

comment on function gradient.start_evaluation(text, text, text, text) is
  'Queues an evaluation of a task and returns its id. p_revision: commit, branch or tag; null is the task''s, else the default branch. p_wildcard: attribute patterns; null is the task''s. '
  'Raises GR001 when the task is not active, or skips because one is in flight; GR002 for an unknown project or task; GR005 for malformed values.';
