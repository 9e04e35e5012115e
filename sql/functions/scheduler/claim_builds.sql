-- scheduler.claim_builds(worker, candidates, slots) -> assignments
-- Claims the first `slots` candidates that still hold: the shared build is locked, and then, in a
-- later statement that sees what was committed meanwhile, its gates are checked once more. A build
-- that another session holds is left out, not waited for. The claim is the open dispatched_job row:
-- a second one for the same job cannot exist. Opens the attempt and takes the build off the ready
-- list.
-- OFFSET 0 keeps each lookup by key, also in a plan made while the tables were small.
-- Locks: derivation_build rows FOR NO KEY UPDATE SKIP LOCKED, then ready_build rows. Waits for
-- nobody, so the order among the rows does not matter.
-- Returns: the new assignments, each with the only copy of its token.

create function scheduler.claim_builds(
  p_worker text,
  p_builds bigint[],
  p_projects bigint[],
  p_cache_available boolean[],
  p_slots integer)
  returns table (assignment bigint, derivation_build bigint, token text)
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_locked bigint[];
  v_assignments bigint[];
  v_builds bigint[];
  v_tokens text[];
begin
  select array_agg(l.derivation) into v_locked
  from (
    select b.derivation
    from gradient.derivation_build b
    where b.derivation = any(p_builds)
      and b.status = 'Queued'
    order by array_position(p_builds, b.derivation)
    limit p_slots
    for no key update skip locked
  ) l;

  with claim as materialized (
    select c.derivation, c.place, c.project, driver.evaluation, c.cache_available,
           held.queued_at, w.instance, scheduler.new_token() as token
    from unnest(p_builds, p_projects, p_cache_available) with ordinality
      as c(derivation, project, cache_available, place)
    cross join lateral (
      select b.queued_at
      from gradient.derivation_build b
      join gradient.derivation d on d.id = b.derivation
      where b.derivation = c.derivation
        and b.status = 'Queued'
        and b.cache_available = c.cache_available
        and graph.gates(d.walked, b.wanted, b.cache_available, b.probed, b.blocking_deps,
                        d.drv_present, b.missing_sources)
      offset 0
    ) held
    cross join lateral (
      select named.evaluation
      from (
        select j.evaluation, j.aborted
        from gradient.build_job j
        where j.derivation_build = c.derivation
        offset 0
      ) named
      cross join lateral (
        select e.finished_at
        from gradient.evaluation e
        join gradient.task t on t.id = e.task
        where e.id = named.evaluation
          and e.status <> 'Aborted'
          and t.project = c.project
        offset 0
      ) running
      order by named.aborted, running.finished_at is not null, named.evaluation
      limit 1
    ) driver
    join gradient.worker_connection w on w.worker_id = p_worker
    where c.derivation = any(v_locked)
  ), opened as (
    insert into gradient.dispatched_job
      (kind, job, evaluation, derivation_build, project, worker_id, instance, substitute,
       upload_token_hash, queued_at, dispatched_at)
    select 'Build', 'build:' || c.derivation, c.evaluation, c.derivation, c.project, p_worker,
           c.instance, c.cache_available, scheduler.token_hash(c.token),
           coalesce(c.queued_at, gradient.current_time()), gradient.current_time()
    from claim c
    order by c.place
    on conflict (job) where finished_at is null do nothing
    returning id, derivation_build
  )
  select array_agg(o.id order by c.place), array_agg(c.derivation order by c.place),
         array_agg(c.token order by c.place)
  into v_assignments, v_builds, v_tokens
  from opened o
  join claim c on c.derivation = o.derivation_build;

  if v_assignments is null then
    return;
  end if;

  delete from gradient.ready_build r where r.derivation_build = any(v_builds);
  delete from gradient.offer_score s
  using unnest(v_builds) as b(derivation)
  where s.worker_id = p_worker and s.job = 'build:' || b.derivation;
  perform graph.assigned(v_assignments);

  return query
    select c.id, c.derivation, c.token
    from unnest(v_assignments, v_builds, v_tokens) with ordinality as c(id, derivation, token, place)
    order by c.place;
end
$$;

comment on function scheduler.claim_builds(text, bigint[], bigint[], boolean[], integer) is
  'Claims at most p_slots of the candidates (three parallel arrays, best first: shared build, project, cache_available as offered) for a worker and opens assignment and attempt. '
  'A candidate whose gates closed, whose availability changed, whose evaluations are all aborted or that another session holds is left out.';
