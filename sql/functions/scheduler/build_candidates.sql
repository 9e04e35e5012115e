-- scheduler.build_candidates(worker, limit) -> ready builds, best first
-- What assignment would consider for a worker, and so what the worker is offered: of each class it
-- can build and each project it serves the best `limit` rows by index, merged. Costs
-- O(classes * projects * limit), whatever the length of the queue.
-- A worker that is not connected, drains or cannot build, and one whose server drains or is not
-- recorded, has no candidates.
-- PL/pgSQL for its kept plan: planning takes longer than reading. OFFSET 0 keeps each lookup by key,
-- also in a plan made while the tables were small.
-- Locks: none; a candidate is a hint until scheduler.claim_builds has claimed it.

create function scheduler.build_candidates(p_worker text, p_limit integer)
  returns table (
    place bigint,
    derivation_build bigint,
    project bigint,
    architecture text,
    required_features text[],
    cache_available boolean,
    generation bigint,
    queued_at timestamptz)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    with worker as materialized (
      select w.projects, w.architectures, w.system_features
      from gradient.worker_connection w
      join gradient.server_instance i on i.name = w.instance and not i.draining
      where w.worker_id = p_worker
        and w.can_build
        and not w.draining
        and w.disconnected_at is null
    ), class as materialized (
      select c.id, c.architecture, c.required_features
      from worker w
      join gradient.build_class c
        on (c.architecture = 'builtin' or c.architecture = any(w.architectures))
       and c.required_features <@ w.system_features
    ), served as materialized (
      select s.project
      from worker w
      join scheduler.served_project s on s.project = any(w.projects)
    ), best as (
      select distinct on (r.derivation_build)
        r.derivation_build, r.project, r.priority, r.queued_at, r.offer_generation,
        c.architecture, c.required_features
      from class c
      cross join served s
      cross join lateral (
        select r.derivation_build, r.project, r.priority, r.queued_at, r.offer_generation
        from gradient.ready_build r
        where r.class = c.id and r.project = s.project
        order by r.priority desc, r.queued_at, r.derivation_build
        limit p_limit
      ) r
      order by r.derivation_build, r.priority desc, r.queued_at, r.project
    ), merged as (
      select row_number() over (order by b.priority desc, b.queued_at, b.derivation_build) as place, b.*
      from best b
      order by b.priority desc, b.queued_at, b.derivation_build
      limit p_limit
    )
    select m.place, m.derivation_build, m.project, m.architecture, m.required_features,
           b.cache_available, m.offer_generation, m.queued_at
    from merged m
    cross join lateral (
      select b.cache_available
      from gradient.derivation_build b
      where b.derivation = m.derivation_build
      offset 0
    ) b
    order by m.place;
end
$$;

comment on function scheduler.build_candidates(text, integer) is
  'The ready builds a worker may be given, best first (priority, then age): one row per shared build with the project it would run for. '
  'p_limit bounds each class and project, and the result. cache_available is what a claim must still find. No row for a worker that may be given nothing.';
