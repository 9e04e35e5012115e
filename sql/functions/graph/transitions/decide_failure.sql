-- The failure decision table (reference B.4, classes in gradient.outcome_class), applied to one shared
-- build whose attempt has just been closed:
--   Retry, Upload     tried again after a backoff; Retry while charged attempts last
--   Return            back to the queue at once, nothing charged
--   Aborted           not a verdict
--   Permanent, Timeout  a verdict: whatever needs it fails with it
-- A build that was aborted, or ended well, meanwhile keeps its status.
-- Locks: under the turn; the shared build's row. Returns: the status that stands.
create or replace function graph.decide_failure(p_derivation bigint, p_outcome_class text, p_attempt bigint)
  returns gradient.build_status
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_class gradient.outcome_class := graph.outcome_class(p_outcome_class);
  v_build gradient.derivation_build;
  v_status gradient.build_status;
  v_attempts integer;
  v_backoff interval;
  v_moved bigint[] := array[p_derivation];
begin
  perform graph.lock_shared_builds(null, v_moved);
  select * into v_build from gradient.derivation_build b where b.derivation = p_derivation for no key update;
  if v_build.status not in ('Queued', 'Building') then
    perform graph.after_status_move(v_moved, null);
    return v_build.status;
  end if;

  v_attempts := v_build.attempt + v_class.charged::integer;
  v_backoff := make_interval(secs => gradient.setting_int('build.retry_backoff') * 2 ^ least(greatest(v_attempts - 1, 0), 16));
  v_status := case v_class.decision
    when 'Return' then 'Created'
    when 'Aborted' then 'Aborted'
    when 'Timeout' then 'FailedTimeout'
    when 'Permanent' then 'FailedPermanent'
    when 'Upload' then 'FailedTransient'
    else case
      when v_attempts >= gradient.setting_int('build.max_attempts') then 'FailedPermanent'
      when p_outcome_class = 'missing_input' and (
          select count(*) from gradient.build_attempt a
          where a.derivation_build = p_derivation and a.outcome_class = 'missing_input')
        > gradient.setting_int('build.inputs_unavailable_max_loops') then 'FailedPermanent'
      else 'FailedTransient' end
    end::gradient.build_status;

  update gradient.derivation_build b
  set status = v_status, attempt = v_attempts, updated_at = v_now, substituted = false,
      retry_at = case when v_status = 'FailedTransient' then v_now + v_backoff end,
      prioritized = b.prioritized and v_status in ('Created', 'FailedTransient')
  where b.derivation = p_derivation;
  insert into gradient.phase_event (subject_kind, subject, phase, at, detail)
  values ('Build', p_derivation, v_status::text, v_now, jsonb_build_object('outcome_class', p_outcome_class));

  if v_class.cascades and v_status in ('FailedPermanent', 'FailedTimeout') then
    v_moved := v_moved || graph.cascade_dependency_failed(p_derivation, p_attempt);
  end if;
  perform graph.after_status_move(v_moved, null);
  return v_status;
end
$fn$;

comment on function graph.decide_failure(bigint, text, bigint) is
  'Applies the consequences of p_outcome_class to shared build p_derivation, whose attempt p_attempt has been closed. Returns the status that stands.';
