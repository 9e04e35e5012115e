-- The failure decision table (reference B.4, classes in gradient.outcome_class), applied to one shared
-- build whose attempt has just been closed:
--   Retry, Upload     tried again after a backoff; Retry while charged attempts last
--   Return            back to the queue at once, nothing charged
--   SubstituteMiss    back to the queue; at the threshold of one evaluation an ordinary build. Told of
--                     what is no substitution, a Retry
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
  v_substitution boolean;
  v_misses bigint;
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

  if v_class.decision = 'SubstituteMiss' then
    select a.substitute or v_build.cache_available, (
        select count(*)
        from gradient.build_attempt m
        left join gradient.build_job mj on mj.id = m.build_job
        where m.derivation_build = p_derivation and m.outcome_class = p_outcome_class
          and mj.evaluation is not distinct from j.evaluation)
    into v_substitution, v_misses
    from gradient.build_attempt a
    left join gradient.build_job j on j.id = a.build_job
    where a.id = p_attempt;
    if v_build.cache_available and v_misses >= gradient.setting_int('build.substitute_miss_threshold') then
      perform graph.exhaust_substitution(v_moved);
      return (select b.status from gradient.derivation_build b where b.derivation = p_derivation);
    end if;
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
      when v_class.decision = 'SubstituteMiss' and v_substitution then 'Created'
      when v_attempts >= gradient.setting_int('build.max_attempts') then 'FailedPermanent'
      when p_outcome_class = 'missing_input' and graph.inputs_given_up(p_derivation) then 'FailedPermanent'
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
  perform graph.fail_blocked(v_moved);
  return (select b.status from gradient.derivation_build b where b.derivation = p_derivation);
end
$fn$;

comment on function graph.decide_failure(bigint, text, bigint) is
  'Applies the consequences of p_outcome_class to shared build p_derivation, whose attempt p_attempt has been closed. Returns the status that stands.';
