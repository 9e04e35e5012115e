-- scheduler.assign(worker, connection, kind, slots) -> AssignJob, one row each
-- Gives a connected worker up to `slots` jobs of a kind: the best candidates are claimed, and the
-- caller commits before it sends what is returned. Nothing is given to a connection that was
-- replaced, dropped or drains, or while its server drains.
-- Locks: the worker_connection row FOR SHARE, so that a reconnect or a drain waits for the claim
-- and sees it; then those of scheduler.claim_builds or scheduler.claim_evaluations.
-- Returns: the fields of AssignJob: assignment, job, spec, token, cache_path.
-- Execute: server

create function scheduler.assign(
  p_worker text,
  p_connection bigint,
  p_kind text,
  p_slots bigint)
  returns setof jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  -- A round finds less than it wants only when candidates closed or were taken under its hands.
  c_rounds constant integer := 3;
  -- What one call hands out stays small, whatever a worker asks for.
  c_slots constant integer := 1000;
  v_left integer := least(coalesce(p_slots, 0), c_slots);
  v_tried bigint[] := '{}';
  v_jobs bigint[];
  v_projects bigint[];
  v_available boolean[];
  v_assignments jsonb;
begin
  if p_kind is null or p_kind not in ('evaluation', 'build') then
    raise exception using errcode = 'GR005',
      message = format('There is no kind of job %L.', p_kind),
      hint = 'Use evaluation or build.';
  end if;

  perform from gradient.worker_connection w
  where w.worker_id = p_worker
    and w.connection = p_connection
    and w.disconnected_at is null
    and not w.draining
  for share;
  if not found then
    return;
  end if;

  for v_round in 1 .. c_rounds loop
    exit when v_left <= 0;

    if p_kind = 'build' then
      select array_agg(c.derivation_build order by c.place), array_agg(c.project order by c.place),
             array_agg(c.cache_available order by c.place)
      into v_jobs, v_projects, v_available
      from scheduler.build_candidates(
        p_worker, greatest(gradient.setting_int('assign.window'), v_left)::integer) c
      where c.derivation_build <> all(v_tried);
      exit when v_jobs is null;

      select jsonb_agg(
        jsonb_build_object(
          'assignment', a.assignment,
          'job', 'build:' || a.derivation_build,
          'spec', s.spec,
          'token', a.token,
          'cache_path', '/jobs/' || a.assignment || '/cache')
        order by a.assignment)
      into v_assignments
      from scheduler.claim_builds(p_worker, v_jobs, v_projects, v_available, v_left) a
      cross join scheduler.build_specs(array[a.derivation_build]) s;
    else
      select array_agg(c.evaluation order by c.place) into v_jobs
      from scheduler.evaluation_candidates(
        p_worker, gradient.setting_int('eval.per_pass')::integer) c
      where c.evaluation <> all(v_tried);
      exit when v_jobs is null;

      select jsonb_agg(
        jsonb_build_object(
          'assignment', a.assignment,
          'job', 'eval:' || a.evaluation,
          'spec', s.spec,
          'token', a.token,
          'cache_path', '/jobs/' || a.assignment || '/cache')
        order by a.assignment)
      into v_assignments
      from scheduler.claim_evaluations(p_worker, v_jobs, v_left) a
      cross join scheduler.evaluation_specs(array[a.evaluation]) s;
    end if;

    v_tried := v_tried || v_jobs[1:v_left];
    v_left := v_left - coalesce(jsonb_array_length(v_assignments), 0);
    return query select a.value from jsonb_array_elements(v_assignments) a;
  end loop;
end
$$;

comment on function scheduler.assign(text, bigint, text, bigint) is
  'Opens up to p_slots assignments, at most 1000, of a kind (evaluation, build) for a worker on its connection. '
  'Returns AssignJob of the wire, one object a row, best first; send them after the commit: the token is stored nowhere else. No row when there is nothing the worker may be given. Raises GR005 for an unknown kind.';
