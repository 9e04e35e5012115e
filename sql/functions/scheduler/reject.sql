-- scheduler.reject(assignment, worker, reason)
-- The worker refused a job before it started it: the job is offered again at once, to every worker
-- that may run it, and the reason stays visible on the attempt or the evaluation.
-- Locks: the turn. Said twice, it changes nothing the second time.
-- Execute: server

create function scheduler.reject(p_assignment bigint, p_worker text, p_reason text)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_job gradient.dispatched_job;
  v_reason constant text := left(coalesce(nullif(p_reason, ''), 'no reason given'), 8192);
begin
  perform graph.take_turn();

  select d.* into v_job
  from gradient.dispatched_job d
  where d.id = p_assignment and d.worker_id = p_worker;
  if v_job.outcome_class = 'rejected' then
    return;
  end if;
  if v_job.id is null or v_job.finished_at is not null then
    raise exception using errcode = 'GR003',
      message = format('Assignment %s is not open for worker %s.', p_assignment, p_worker),
      detail = case when v_job.id is null then 'No such assignment of this worker.'
        else format('Closed %s as %s.', v_job.finished_at, coalesce(v_job.outcome_class, v_job.outcome::text)) end;
  end if;

  perform graph.return_assignments(array[p_assignment], 'rejected');

  update gradient.build_attempt a
  set failure_message = format('Offered to %s, refused: %s', p_worker, v_reason)
  where a.dispatched_job = p_assignment;

  insert into gradient.phase_event (subject_kind, subject, phase, at, worker_id, detail)
  values (v_job.kind, coalesce(v_job.derivation_build, v_job.evaluation), 'Rejected',
          gradient.current_time(), p_worker,
          jsonb_build_object('assignment', p_assignment, 'reason', v_reason));
end
$$;

comment on function scheduler.reject(bigint, text, text) is
  'Returns a job that a worker refused to the queue and keeps the reason for people. Raises GR003 when the assignment is not this worker''s or was closed by something else.';
