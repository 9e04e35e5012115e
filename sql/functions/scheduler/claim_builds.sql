-- scheduler.claim_builds(worker, candidates, slots) -> assignments
-- Claims the first `slots` candidates that still hold: the shared build is locked, and then, in a
-- later statement that sees what was committed meanwhile, its gates are checked once more. A build
-- that another session holds is left out, not waited for. The claim is the open dispatched_job row:
-- a second one for the same job cannot exist. Opens the attempt and takes the build off the ready
-- list.
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
    from unnest(p_builds) with ordinality as c(derivation, place)
    join gradient.derivation_build b on b.derivation = c.derivation
    where b.status = 'Queued'
    order by c.place
    limit p_slots
    for no key update of b skip locked
  ) l;

  with claim as materialized (
    select c.derivation, c.place, c.project, driver.evaluation, b.cache_available,
           b.queued_at, w.instance, scheduler.new_token() as token
    from unnest(p_builds, p_projects, p_cache_available) with ordinality
      as c(derivation, project, cache_available, place)
    join gradient.derivation_build b on b.derivation = c.derivation
    join gradient.derivation d on d.id = b.derivation
    join gradient.worker_connection w on w.worker_id = p_worker
    cross join lateral (
      select j.evaluation
      from gradient.build_job j
      join gradient.evaluation e on e.id = j.evaluation
      join gradient.task t on t.id = e.task
      where j.derivation_build = c.derivation
        and t.project = c.project
        and e.status <> 'Aborted'
      order by j.aborted, e.finished_at is not null, e.id
      limit 1
    ) driver
    where c.derivation = any(v_locked)
      and b.status = 'Queued'
      and b.cache_available = c.cache_available
      and graph.gates(d.walked, b.wanted, b.cache_available, b.probed, b.blocking_deps,
                      d.drv_present, b.missing_sources)
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
