-- Deletes derivations that a scan found unreachable. They are checked again under the turn: what is
-- named by now, by a build_job or an entry point, directly or from above, survives; so does what was
-- made after the scan, what a worker still holds, and what a survivor refers to at run time, since
-- that survivor's closure is counted from it. A survivor that needed a deleted input to build is
-- un-walked and leaves the queue: its subtree is not known any more.
-- Paths are not touched: an object of two derivations survives the deletion of one.
-- p_candidates: bounded by the caller; p_scanned_at: when the scan began.
-- Locks: the turn; derivation rows by id, the parents' too; keys exclusive; shared builds by derivation.
-- Returns: {derivations: ids deleted, attempts: ids of their attempts, whose log objects go next,
-- unwalked: how many survivors}. Idempotent.
-- Execute: server, operator
create or replace function graph.gc_derivations(p_candidates bigint[], p_scanned_at timestamptz)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_kept bigint[];
  v_garbage bigint[];
  v_attempts bigint[];
  v_parents bigint[];
  v_unwalked bigint[];
  v_orphaned bigint[];
begin
  perform graph.take_turn();
  perform from gradient.derivation d
  where d.id = any (p_candidates)
    or d.id in (select e.derivation from gradient.derivation_dependency e where e.dependency = any (p_candidates))
  order by d.id for update;
  perform graph.lock_shared_builds(null, p_candidates);

  -- Up from the candidates, then down again from what must stay. Above garbage is only garbage.
  with recursive above (id) as materialized (
    select d.id from gradient.derivation d where d.id = any (p_candidates)
    union
    select e.derivation from above a join gradient.derivation_dependency e on e.dependency = a.id
  ), kept (id) as (
    (
      select a.id
      from above a
      join gradient.derivation d on d.id = a.id
      where exists (select from gradient.build_job j where j.derivation_build = a.id)
        or exists (select from gradient.entry_point p where p.derivation = a.id)
        or exists (
          select from gradient.dispatched_job o where o.job = 'build:' || a.id and o.finished_at is null)
        or (d.created_at >= p_scanned_at and a.id = any (p_candidates))
      union
      select e.dependency
      from above a
      join gradient.derivation_dependency e on e.derivation = a.id and e.kind <> 'Build'
      where a.id <> all (p_candidates)
    )
    union
    select e.dependency
    from kept k
    join gradient.derivation_dependency e on e.derivation = k.id
    where e.dependency in (select a.id from above a)
  )
  select coalesce(array_agg(k.id), '{}') into v_kept from kept k;
  v_garbage := array(
    select d.id from gradient.derivation d
    where d.id = any (p_candidates) and d.id not in (select unnest(v_kept))
    order by d.id);

  v_attempts := array(
    select a.id from gradient.build_attempt a where a.derivation_build = any (v_garbage) order by a.id);
  v_parents := array(
    select distinct e.derivation
    from gradient.derivation_dependency e
    where e.dependency = any (v_garbage) and e.derivation not in (select unnest(v_garbage))
    order by 1);
  v_unwalked := graph.unwalk(v_parents);
  with freed as (
    update gradient.derivation_build b
    set status = 'Created', failed_by = null, attempt = 0, updated_at = gradient.current_time()
    where b.failed_by = any (v_attempts) and b.derivation not in (select unnest(v_garbage))
    returning b.derivation
  )
  select coalesce(array_agg(f.derivation), '{}') into v_orphaned from freed f;

  delete from gradient.derivation d where d.id = any (v_garbage);
  delete from gradient.phase_event v where v.subject_kind = 'Build' and v.subject = any (v_garbage);

  perform graph.recount_unwalked_inputs(v_parents);
  perform graph.seed_blocking_deps(v_parents);
  perform graph.after_status_move(v_parents || v_orphaned, null);
  return jsonb_build_object(
    'derivations', to_jsonb(v_garbage), 'attempts', to_jsonb(v_attempts),
    'unwalked', cardinality(v_unwalked));
end
$fn$;

comment on function graph.gc_derivations(bigint[], timestamptz) is
  'Deletes those derivations of p_candidates that nothing names or needs, found by a scan that began at p_scanned_at. Returns {derivations, attempts: ids whose log objects go next, unwalked: survivors whose subtree is not known any more}.';
