-- Commits NARs whose objects are stored: the cached paths, their references, the claims, the outputs
-- and sources they back, and everything that follows. Set-based for the whole flush. Writes no
-- success: a build is Completed by its report.
-- p_nars: [{path, file_hash, file_size, nar_hash, nar_size, compression, references, deriver, ca,
-- assignment, caches, ca_verified}]; with an assignment the claims go to the caches its project
-- writes to, else to "caches".
-- Locks: the turn; derivation rows by id; keys; cached_path by hash; shared builds by derivation.
-- Returns: one report for each NAR, in order: {path, created, outputs_marked, claims}. Idempotent.
-- Errors: see graph.check_nars; any error refuses the whole call.
-- Execute: server
create or replace function graph.commit_nars(p_nars jsonb)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
  set enable_mergejoin = off
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_new bigint[];
  v_hash text[];
  v_producers bigint[];
  v_owners bigint[];
  v_recorded bigint[];
  v_sourced bigint[];
  v_below bigint[];
  v_stored bigint[];
  v_recounted bigint[];
  v_grown bigint[];
  v_gained bigint[];
  v_lost bigint[];
  v_flipped bigint[];
  v_released bigint[];
  v_need record;
  v_report jsonb;
begin
  perform graph.take_turn();
  perform graph.check_nars(p_nars);

  select array_agg(distinct substr(n.path, 12, 32)) into v_hash
  from jsonb_to_recordset(p_nars) as n (path text);
  if not graph.turn_held() then
    perform from gradient.derivation d where d.hash = any (v_hash) order by d.id for no key update;
    perform graph.lock_shared_builds(null, array(
      select o.derivation from gradient.derivation_output o where o.hash = any (v_hash)));
  end if;

  with made as (
    insert into gradient.cached_path (
      hash, package, file_hash, file_size, nar_hash, nar_size, compression, "references", deriver, ca, created_at)
    select distinct on (1) substr(n.path, 12, 32), substr(n.path, 45), n.file_hash, n.file_size, n.nar_hash, n.nar_size,
      n.compression, array(select jsonb_array_elements_text(coalesce(n."references", '[]'))), n.deriver, n.ca, v_now
    from jsonb_to_recordset(p_nars) as n (
      path text, file_hash text, file_size bigint, nar_hash text, nar_size bigint, compression text,
      "references" jsonb, deriver text, ca text)
    order by 1
    on conflict (hash) do nothing
    returning id, hash
  )
  select coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.hash), '{}') into v_new, v_hash from made m;

  with marked as (
    update gradient.derivation_output o
    set cached_path = c.id, nar_size = c.nar_size
    from unnest(v_new, v_hash) as c0 (id, hash)
    join gradient.cached_path c on c.id = c0.id
    where o.hash = c0.hash and o.cached_path is null
    returning o.derivation
  )
  select coalesce(array_agg(distinct m.derivation), '{}') into v_producers from marked m;

  with owned as (
    update gradient.derivation d
    set drv_present = true
    where d.hash = any (v_hash) and not d.drv_present
      and exists (
        select from gradient.cached_path c where c.hash = d.hash and c.package = d.name || '.drv')
    returning d.id, graph.recorded(d.walked, true, d.unwalked_inputs) as recorded
  )
  select coalesce(array_agg(o.id), '{}'), coalesce(array_agg(o.id) filter (where o.recorded), '{}')
  into v_owners, v_recorded
  from owned o;
  perform graph.ripple_recorded(v_recorded, null);

  perform set_config('gradient.counters_only', 'on', true);
  with sourced as (
    update gradient.derivation_build b
    set missing_sources = b.missing_sources - s.arrived
    from (
      select i.derivation, count(*) as arrived
      from gradient.derivation_input_source i
      where i.hash = any (v_hash)
      group by i.derivation
      order by i.derivation
    ) as s
    where b.derivation = s.derivation
    returning b.derivation, b.missing_sources
  )
  select coalesce(array_agg(s.derivation) filter (where s.missing_sources <= 0), '{}'),
    array_agg(s.derivation) filter (where s.missing_sources < 0),
    array_agg(s.missing_sources) filter (where s.missing_sources < 0)
  into v_sourced, v_below, v_stored
  from sourced s;
  if v_below is not null then
    v_recounted := graph.recount_missing_sources(v_below);
    perform graph.report_drift('missing_sources', v_below, v_stored, v_recounted, 'commit_nars');
  end if;
  perform set_config('gradient.counters_only', 'off', true);

  v_grown := graph.adopt_references(v_producers);
  select s.gained, s.lost into v_gained, v_lost
  from graph.seed_missing_runtime_deps(
    array(select unnest(v_producers) union select unnest(v_grown)), v_producers) as s;
  select f.flipped, f.released into v_flipped, v_released from graph.became_fetchable(v_gained) as f;
  perform graph.lost_fetchability(v_lost);

  v_need := graph.update_need(v_flipped || v_lost || v_grown);
  perform graph.settle_need(v_need.gained, v_need.lost);
  perform graph.promote(v_owners || v_sourced || v_released);

  insert into gradient.cached_path_signature (cached_path, cache, created_at)
  select distinct c.id, p.cache, v_now
  from jsonb_to_recordset(p_nars) as n (path text, assignment bigint, caches jsonb)
  join gradient.cached_path c on c.hash = substr(n.path, 12, 32)
  cross join lateral (
    select k.cache
    from gradient.dispatched_job o
    join gradient.project_cache k on k.project = o.project and k.mode <> 'ReadOnly'
    where o.id = n.assignment
    union
    select x.value::bigint
    from jsonb_array_elements_text(coalesce(nullif(n.caches, 'null'), '[]')) as x (value)
    where n.assignment is null
  ) as p (cache)
  order by 1, 2
  on conflict (cached_path, cache) do nothing;

  perform graph.check_evaluations_done(array(
    select distinct j.evaluation from gradient.build_job j where j.derivation_build = any (v_flipped || v_need.lost)));

  select jsonb_agg(jsonb_build_object(
      'path', n.path,
      'created', substr(n.path, 12, 32) = any (v_hash),
      'outputs_marked', (select count(*) from gradient.derivation_output o where o.hash = substr(n.path, 12, 32)),
      'claims', (select count(*) from gradient.cached_path_signature s
                 join gradient.cached_path c on c.id = s.cached_path where c.hash = substr(n.path, 12, 32)))
    order by n.n)
  into v_report
  from (select x.value ->> 'path' as path, x.n from jsonb_array_elements(p_nars) with ordinality as x (value, n)) as n;
  return coalesce(v_report, '[]');
end
$fn$;

comment on function graph.commit_nars(jsonb) is
  'Commits NARs whose objects are stored, and everything that follows from their arrival. p_nars: [{path, file_hash, file_size, nar_hash, nar_size (bytes), compression, references (base names), deriver, ca, assignment, caches, ca_verified}]. Returns a report for each: {path, created, outputs_marked, claims}. Errors GR003, GR005, GR006, GR007 refuse the whole call.';
