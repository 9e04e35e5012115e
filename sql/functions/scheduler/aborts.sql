-- scheduler.aborts(instance) -> worker, assignment, reason
-- The running jobs that are to be stopped, of the workers connected to a server. A session sends
-- AbortJob for each; the row stays until the worker has reported the end of the job.
-- Locks: none.
-- Execute: server

create function scheduler.aborts(p_instance text)
  returns table (worker text, assignment bigint, reason text)
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select d.worker_id, d.id,
         case d.kind when 'Evaluation' then 'The evaluation was aborted.'
           else 'No evaluation needs this build any more.' end
  from gradient.dispatched_job d
  join gradient.worker_connection w on w.worker_id = d.worker_id
  where d.finished_at is null
    and d.abort_requested_at is not null
    and w.instance = p_instance
    and w.disconnected_at is null
  order by d.id
$$;

comment on function scheduler.aborts(text) is
  'Open assignments that someone asked to stop, on workers connected to a server: whom to send AbortJob, and why. The same row again until the worker reports the end.';
