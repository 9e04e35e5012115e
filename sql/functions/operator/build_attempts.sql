-- gradient.build_attempts(build) -> the attempts of a build, latest first
-- What "build log" and people need to know of each execution before they read its log.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.build_attempts(p_build bigint)
  returns table (
    attempt bigint,
    assignment bigint,
    worker text,
    outcome gradient.attempt_outcome,
    outcome_class text,
    failure_message text,
    created_at timestamptz,
    build_started_at timestamptz,
    build_finished_at timestamptz,
    log_bytes bigint,
    log_truncated_bytes bigint,
    log_finished boolean)
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select a.id, a.dispatched_job, coalesce(d.worker_id, a.build_context ->> 'worker'), a.outcome,
         a.outcome_class, a.failure_message, a.created_at, a.build_started_at, a.build_finished_at,
         (select coalesce(sum(c.byte_len), 0) from gradient.build_log_chunk c where c.build_attempt = a.id),
         a.log_truncated_bytes,
         a.log_finished or a.outcome <> 'Running'
  from gradient.build_attempt a
  left join gradient.dispatched_job d on d.id = a.dispatched_job
  where a.derivation_build = p_build
  order by a.id desc
$$;

comment on function gradient.build_attempts(bigint) is
  'The attempts of a shared build, latest first, with worker, outcome and size of the log in bytes; log_finished: nothing more will be appended. No row when it was never handed out.';
