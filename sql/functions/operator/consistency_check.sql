-- CALL gradient.consistency_check(budget) -> report
-- Looks at everything that is counted, marked or listed, in the order in which one follows from the
-- other, and writes anew what is wrong; ends with gradient.violations(). Runs beside a working system:
-- each chunk is a transaction of its own, locks nothing while all is well, and is followed by a pause as
-- long as it took (setting check.pace). SECURITY INVOKER without a SET clause, since only such a
-- procedure may commit; it loops, and the functions that it calls write.
-- p_budget: after that long it stops where it is; null is the setting check.budget.
-- Returns: {ran, complete, drift, violations, milliseconds, steps: [{step, drift, chunks, milliseconds}]};
-- when another one runs, {ran: false}, with a notice.
-- Locks: session advisory (647, 0) while it runs: one at a time in a database. A call that ended in an
-- error keeps it until its session ends or calls again.
-- Errors: GR001 on a standby. It cannot run inside a transaction block.
-- Execute: operator, server

create procedure gradient.consistency_check(p_budget interval default null, inout p_report jsonb default null)
  language plpgsql
as $$
declare
  c_attempts constant integer := 3;
  c_longest_pause constant double precision := 5;
  c_steps constant text[] := array[
    'drv_present', 'unwalked_inputs', 'missing_sources', 'missing_runtime_deps', 'fetchable', 'wanted',
    'skipped', 'blocking_deps', 'named', 'queue', 'ready', 'evaluation_counters', 'verdicts'];
  v_began timestamptz;
  v_step_began timestamptz;
  v_chunk_began timestamptz;
  v_budget interval;
  v_limit integer;
  v_pace double precision;
  v_step text;
  v_after bigint;
  v_last bigint;
  v_drift bigint;
  v_step_drift bigint;
  v_all_drift bigint := 0;
  v_chunks integer;
  v_attempt integer;
  v_complete boolean := true;
  v_steps jsonb := '[]';
  v_violations bigint;
begin
  if pg_catalog.pg_is_in_recovery() then
    raise exception using errcode = 'GR001',
      message = 'This database is a standby, where nothing can be repaired.',
      hint = 'Connect to the primary.';
  end if;
  if not exists (
      select from pg_catalog.pg_locks l
      where l.locktype = 'advisory' and l.classid = 647 and l.objid = 0 and l.granted
        and l.pid = pg_catalog.pg_backend_pid())
    and not pg_catalog.pg_try_advisory_lock(647, 0)
  then
    raise notice 'Another consistency check runs in this database.';
    p_report := pg_catalog.jsonb_build_object('ran', false);
    return;
  end if;

  v_began := gradient.current_time();
  v_budget := coalesce(p_budget, pg_catalog.make_interval(secs => gradient.setting_int('check.budget')));
  v_limit := greatest(1, gradient.setting_int('check.chunk'));
  v_pace := gradient.setting_int('check.pace') / 100.0;
  <<steps>>
  foreach v_step in array c_steps loop
    v_step_began := gradient.current_time();
    v_step_drift := 0;
    v_chunks := 0;
    v_after := 0;
    loop
      if gradient.current_time() - v_began > v_budget then
        v_complete := false;
        exit steps;
      end if;
      v_chunk_began := gradient.current_time();
      v_attempt := 1;
      loop
        begin
          execute pg_catalog.format('select c.drift, c.last from graph.%I($1, $2) as c', 'check_' || v_step)
            into v_drift, v_last using v_after, v_limit;
          exit;
        exception when deadlock_detected or serialization_failure then
          if v_attempt = c_attempts then
            raise;
          end if;
          v_attempt := v_attempt + 1;
        end;
      end loop;
      commit;
      v_chunks := v_chunks + 1;
      v_step_drift := v_step_drift + v_drift;
      perform pg_catalog.pg_sleep(least(c_longest_pause,
        v_pace * extract(epoch from gradient.current_time() - v_chunk_began)));
      exit when v_last is null;
      v_after := v_last;
    end loop;
    v_all_drift := v_all_drift + v_step_drift;
    v_steps := v_steps || pg_catalog.jsonb_build_object(
      'step', v_step, 'drift', v_step_drift, 'chunks', v_chunks,
      'milliseconds', pg_catalog.round(1000 * extract(epoch from gradient.current_time() - v_step_began)));
  end loop steps;

  -- What has been repaired before stands in gradient.drift still, and is no violation of now.
  select count(*) into v_violations from gradient.violations() as v where v.rule <> 'drift';
  perform pg_catalog.pg_advisory_unlock(647, 0);
  p_report := pg_catalog.jsonb_build_object(
    'ran', true, 'complete', v_complete, 'drift', v_all_drift, 'violations', v_violations,
    'milliseconds', pg_catalog.round(1000 * extract(epoch from gradient.current_time() - v_began)),
    'steps', v_steps);
end
$$;

comment on procedure gradient.consistency_check(interval, jsonb) is
  'Checks every counter, mark and list against the rows next to it, repairs what is wrong, remembers it in gradient.drift, and counts what gradient.violations() still finds. '
  'p_budget: time after which it stops where it is; null is the setting check.budget. Give nothing for p_report; it is the answer: {ran, complete, drift, violations, milliseconds, steps}. '
  'One at a time: while another runs it says so and returns {ran: false}. Commits after each chunk, so it cannot be called inside a transaction block. Example: call gradient.consistency_check();';
