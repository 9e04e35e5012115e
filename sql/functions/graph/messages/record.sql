-- Records batches of walks: derivations, stubs, edges, outputs, sources, shared builds, names, entry
-- points, messages, and everything that follows from them, set-based for the whole flush.
-- p_batches: [{evaluation, assignment, derivations, entry_points, messages}], as on the wire.
-- Locks: the turn; evaluations by id; derivation rows by id; keys; shared builds by derivation.
-- Returns: one report for each batch, in order: {evaluation, skipped, walked, created, entry_points}.
-- A batch for an evaluation that no longer takes batches is skipped as stale. Idempotent.
-- Errors: GR002 no such evaluation; GR003 the assignment is not that evaluation's open one; GR005
-- malformed content. Any error refuses the whole call: the writer then records batch by batch.
-- Execute: server
create or replace function graph.record(p_batches jsonb)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
  set work_mem = '64MB'
  set enable_mergejoin = off
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_bad record;
  v_batches bigint[];          -- ordinals of the batches taken
  v_drv text[];                -- the derivations listed, distinct, with what the batch says of them
  v_data jsonb[];
  v_drv_id bigint[];
  v_edge_from text[];          -- their inputs
  v_edge_to text[];
  v_edge_from_id bigint[];
  v_edge_to_id bigint[];
  v_output_of text[];
  v_output text[];
  v_output_path text[];
  v_source_of text[];
  v_source_path text[];
  v_entry_evaluation bigint[];
  v_entry_attribute text[];
  v_entry_drv text[];
  v_lists_batch bigint[];      -- which batch of which evaluation lists which derivation
  v_lists_evaluation bigint[];
  v_lists_drv text[];
  v_name text[];               -- every derivation named: listed ones, their inputs, entry points
  v_id bigint[];
  v_fresh bigint[];
  v_first bigint[];            -- those of them that no walk has seen before
  v_builds bigint[];           -- shared builds made now
  v_grown bigint[];
  v_gained bigint[];
  v_lost bigint[];
  v_substituted bigint[];
  v_flipped bigint[];
  v_released bigint[];
  v_wanted bigint[];
  v_need record;
  v_report jsonb;
begin
  perform graph.take_turn();

  select b.value ->> 'evaluation' as evaluation into v_bad
  from jsonb_array_elements(p_batches) as b (value)
  where not exists (select from gradient.evaluation e where e.id = (b.value ->> 'evaluation')::bigint)
  limit 1;
  if found then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', coalesce(v_bad.evaluation, 'null')),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  perform from gradient.evaluation e
  where e.id in (select (b.value ->> 'evaluation')::bigint from jsonb_array_elements(p_batches) as b (value))
  order by e.id for no key update;

  select b.value ->> 'assignment' as assignment, b.value ->> 'evaluation' as evaluation into v_bad
  from jsonb_array_elements(p_batches) as b (value)
  where b.value ->> 'assignment' is not null
    and not exists (
      select from gradient.dispatched_job o
      where o.id = (b.value ->> 'assignment')::bigint
        and o.job = 'eval:' || (b.value ->> 'evaluation') and o.finished_at is null)
  limit 1;
  if found then
    raise exception using errcode = 'GR003',
      message = format('Assignment %s is not the open one of evaluation %s.', v_bad.assignment, v_bad.evaluation),
      hint = format('select * from gradient.dispatched_job where job = %L order by id desc;', 'eval:' || v_bad.evaluation);
  end if;

  select coalesce(array_agg(b.n), '{}') into v_batches
  from jsonb_array_elements(p_batches) with ordinality as b (value, n)
  join gradient.evaluation e on e.id = (b.value ->> 'evaluation')::bigint
  where graph.accepts_batches(e.status);

  select coalesce(array_agg(b.n), '{}'), coalesce(array_agg((b.value ->> 'evaluation')::bigint), '{}'),
    coalesce(array_agg(i.value ->> 'drv'), '{}')
  into v_lists_batch, v_lists_evaluation, v_lists_drv
  from jsonb_array_elements(p_batches) with ordinality as b (value, n)
  cross join lateral jsonb_array_elements(coalesce(b.value -> 'derivations', '[]')) as i (value)
  where b.n = any (v_batches);

  select coalesce(array_agg(d.drv order by d.drv collate "C"), '{}'), coalesce(array_agg(d.data order by d.drv collate "C"), '{}')
  into v_drv, v_data
  from (
    select distinct on ((i.value ->> 'drv') collate "C") i.value ->> 'drv' as drv, i.value as data
    from jsonb_array_elements(p_batches) with ordinality as b (value, n)
    cross join lateral jsonb_array_elements(coalesce(b.value -> 'derivations', '[]')) as i (value)
    where b.n = any (v_batches)
    order by (i.value ->> 'drv') collate "C"
  ) as d;

  select coalesce(array_agg(d.drv), '{}'), coalesce(array_agg(i.name), '{}')
  into v_edge_from, v_edge_to
  from unnest(v_drv, v_data) as d (drv, data)
  cross join lateral jsonb_array_elements_text(coalesce(d.data -> 'dependencies', '[]')) as i (name);

  select coalesce(array_agg(d.drv), '{}'), coalesce(array_agg(o.value ->> 'name'), '{}'), coalesce(array_agg(o.value ->> 'path'), '{}')
  into v_output_of, v_output, v_output_path
  from unnest(v_drv, v_data) as d (drv, data)
  cross join lateral jsonb_array_elements(coalesce(d.data -> 'outputs', '[]')) as o (value);

  select coalesce(array_agg(d.drv), '{}'), coalesce(array_agg(s.path), '{}')
  into v_source_of, v_source_path
  from unnest(v_drv, v_data) as d (drv, data)
  cross join lateral jsonb_array_elements_text(coalesce(d.data -> 'input_sources', '[]')) as s (path);

  select coalesce(array_agg((b.value ->> 'evaluation')::bigint), '{}'), coalesce(array_agg(p.value ->> 'attribute'), '{}'),
    coalesce(array_agg(p.value ->> 'drv'), '{}')
  into v_entry_evaluation, v_entry_attribute, v_entry_drv
  from jsonb_array_elements(p_batches) with ordinality as b (value, n)
  cross join lateral jsonb_array_elements(coalesce(b.value -> 'entry_points', '[]')) as p (value)
  where b.n = any (v_batches);

  perform graph.check_batch_paths('derivation', v_drv, v_drv);
  perform graph.check_batch_paths('input derivation', v_edge_to, v_edge_from);
  perform graph.check_batch_paths('entry point', v_entry_drv, v_entry_attribute);
  perform graph.check_batch_paths('output path', v_output_path, v_output_of);
  perform graph.check_batch_paths('input source', v_source_path, v_source_of);

  select coalesce(array_agg(a.name order by a.name collate "C"), '{}') into v_name
  from (select unnest(v_drv) union select unnest(v_edge_to) union select unnest(v_entry_drv)) as a (name);

  -- Rows for all of them, in the order of their key, so that two writers meet in the same order.
  with missing as (
    select n.name as drv, left(n.name, 32) as hash, substr(n.name, 34, length(n.name) - 37) as name, d.data
    from unnest(v_name) as n (name)
    left join unnest(v_drv, v_data) as d (drv, data) on d.drv = n.name
    where not exists (
      select from gradient.derivation k
      where k.hash = left(n.name, 32) and k.name = substr(n.name, 34, length(n.name) - 37))
    order by 2, 3
  ), made as (
    insert into gradient.derivation (
      hash, name, architecture, required_features, pname, prefer_local_build, is_fixed_output,
      allow_substitutes, ifd, walked, drv_present, created_at)
    select m.hash, m.name,
      coalesce(m.data ->> 'architecture', ''),
      array(select distinct f.name from jsonb_array_elements_text(coalesce(m.data -> 'required_features', '[]')) as f (name) order by 1),
      m.data ->> 'pname',
      coalesce((m.data ->> 'prefer_local_build')::boolean, false),
      coalesce((m.data ->> 'is_fixed_output')::boolean, false),
      coalesce((m.data ->> 'allow_substitutes')::boolean, true),
      coalesce((m.data ->> 'ifd')::boolean, false),
      m.data is not null,
      exists (select from gradient.cached_path c where c.hash = m.hash),
      v_now
    from missing m
    on conflict (hash, name) do nothing
    returning id, walked
  )
  select coalesce(array_agg(m.id) filter (where m.walked), '{}') into v_fresh from made m;

  select coalesce(array_agg(d.id order by n.name collate "C"), '{}') into v_id
  from unnest(v_name) as n (name)
  join gradient.derivation d on d.hash = left(n.name, 32) and d.name = substr(n.name, 34, length(n.name) - 37);
  select coalesce(array_agg(n.id order by l.drv collate "C"), '{}') into v_drv_id
  from unnest(v_drv) as l (drv)
  join unnest(v_name, v_id) as n (name, id) on n.name = l.drv;
  -- The same edges by id, resolved once for all that follows.
  select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(i.id), '{}') into v_edge_from_id, v_edge_to_id
  from unnest(v_edge_from, v_edge_to) as x (drv, name)
  join unnest(v_drv, v_drv_id) as l (drv, id) on l.drv = x.drv
  join unnest(v_name, v_id) as i (name, id) on i.name = x.name;

  -- Stubs that the batch walks.
  perform from gradient.derivation d
  where d.id = any (v_drv_id) and not d.walked
  order by d.id for no key update;

  with walked as (
    update gradient.derivation d
    set walked = true,
        unwalked_inputs = 0,
        architecture = coalesce(l.data ->> 'architecture', ''),
        required_features = array(select distinct f.name from jsonb_array_elements_text(coalesce(l.data -> 'required_features', '[]')) as f (name) order by 1),
        pname = l.data ->> 'pname',
        prefer_local_build = coalesce((l.data ->> 'prefer_local_build')::boolean, false),
        is_fixed_output = coalesce((l.data ->> 'is_fixed_output')::boolean, false),
        allow_substitutes = coalesce((l.data ->> 'allow_substitutes')::boolean, true),
        ifd = d.ifd or coalesce((l.data ->> 'ifd')::boolean, false)
    from unnest(v_drv_id, v_data) as l (id, data)
    where d.id = l.id and not d.walked
    returning d.id
  )
  select v_fresh || coalesce(array_agg(w.id), '{}') into v_fresh from walked w;
  -- One that was un-walked has its outputs, and may have been complete all along.
  v_first := array(
    select f.id from unnest(v_fresh) as f (id)
    where not exists (select from gradient.derivation_output o where o.derivation = f.id));

  update gradient.derivation d set ifd = true
  from unnest(v_drv_id, v_data) as l (id, data)
  where d.id = l.id and (l.data ->> 'ifd')::boolean and not d.ifd;

  -- Edges, outputs and sources of what was walked now.
  insert into gradient.derivation_dependency as e (derivation, dependency, kind)
  select distinct x.derivation, x.dependency, 'Build'::gradient.edge_kind
  from unnest(v_edge_from_id, v_edge_to_id) as x (derivation, dependency)
  join unnest(v_fresh) as f (id) on f.id = x.derivation
  where x.dependency <> x.derivation
  order by 1, 2
  on conflict (derivation, dependency) do update set kind = 'Both' where e.kind = 'Runtime';

  insert into gradient.derivation_output (derivation, name, hash, package, cached_path)
  select f.id, o.name, substr(o.path, 12, 32), substr(o.path, 45), c.id
  from unnest(v_output_of, v_output, v_output_path) as o (drv, name, path)
  join unnest(v_drv, v_drv_id) as l (drv, id) on l.drv = o.drv
  join unnest(v_fresh) as f (id) on f.id = l.id
  left join gradient.cached_path c on c.hash = substr(o.path, 12, 32)
  order by f.id, o.name
  on conflict (derivation, name) do nothing;

  insert into gradient.derivation_input_source (derivation, hash, package)
  select distinct f.id, substr(s.path, 12, 32), substr(s.path, 45)
  from unnest(v_source_of, v_source_path) as s (drv, path)
  join unnest(v_drv, v_drv_id) as l (drv, id) on l.drv = s.drv
  join unnest(v_fresh) as f (id) on f.id = l.id
  order by 1, 2
  on conflict (derivation, hash) do nothing;

  -- Fresh rows count each other as not recorded, then flip from the bottom up.
  perform from gradient.derivation d
  where not graph.turn_held() and d.id = any (v_id) order by d.id for no key update;
  update gradient.derivation d
  set unwalked_inputs = c.inputs
  from (
    select f.id, count(*) as inputs
    from unnest(v_fresh) as f (id)
    join gradient.derivation_dependency e on e.derivation = f.id and e.kind <> 'Runtime'
    join gradient.derivation i on i.id = e.dependency
    where not graph.recorded(i.walked, i.drv_present, i.unwalked_inputs)
       or i.id in (select unnest(v_fresh))
    group by f.id
  ) as c
  where d.id = c.id;
  perform graph.ripple_recorded(
    (select array_agg(d.id) from gradient.derivation d
     where d.id = any (v_fresh) and graph.recorded(d.walked, d.drv_present, d.unwalked_inputs)),
    null);

  -- Shared builds. Without an upstream that could hold the outputs there is nothing to probe.
  with made as (
    insert into gradient.derivation_build (derivation, status, probed, created_at, updated_at)
    select n.id, 'Created', true, v_now, v_now
    from unnest(v_id) as n (id)
    where not exists (select from gradient.derivation_build b where b.derivation = n.id)
    order by 1
    on conflict (derivation) do nothing
    returning derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_builds from made m;

  perform graph.lock_shared_builds(v_id, v_fresh || v_builds);

  if exists (select from gradient.cache_upstream u where u.active and u.mode <> 'WriteOnly') then
    update gradient.derivation_build b set probed = false
    where b.derivation = any (v_builds)
      and exists (
        select
        from jsonb_array_elements(p_batches) as t (value)
        join gradient.evaluation e on e.id = (t.value ->> 'evaluation')::bigint
        join gradient.task k on k.id = e.task
        join gradient.project_cache p on p.project = k.project and p.mode <> 'WriteOnly'
        join gradient.cache_upstream u on u.cache = p.cache and u.active and u.mode <> 'WriteOnly');
  end if;

  perform set_config('gradient.counters_only', 'on', true);
  update gradient.derivation_build b
  set timeout_secs = coalesce(s.timeout_secs, b.timeout_secs),
      max_silent_secs = coalesce(s.max_silent_secs, b.max_silent_secs),
      missing_sources = s.missing
  from (
    select f.id, (l.data ->> 'timeout_secs')::bigint as timeout_secs, (l.data ->> 'max_silent_secs')::bigint as max_silent_secs,
      coalesce(m.missing, 0) as missing
    from unnest(v_drv_id, v_data) as l (id, data)
    join unnest(v_fresh) as f (id) on f.id = l.id
    left join (
      select i.derivation, count(*) as missing
      from unnest(v_fresh) as f (id)
      join gradient.derivation_input_source i on i.derivation = f.id
      where not exists (select from gradient.cached_path c where c.hash = i.hash)
      group by i.derivation
    ) as m on m.derivation = f.id
  ) as s
  where b.derivation = s.id
    and (s.timeout_secs is not null or s.max_silent_secs is not null or s.missing <> b.missing_sources);
  perform set_config('gradient.counters_only', 'off', true);

  -- Names: what a batch lists, and its direct inputs, so that pruned subtrees stay named.
  insert into gradient.build_job (evaluation, derivation_build, created_at)
  select t.evaluation, t.id, v_now
  from (
    select l.evaluation, n.id
    from unnest(v_lists_evaluation, v_lists_drv) as l (evaluation, drv)
    join unnest(v_drv, v_drv_id) as n (drv, id) on n.drv = l.drv
    union
    select l.evaluation, x.dependency
    from unnest(v_lists_evaluation, v_lists_drv) as l (evaluation, drv)
    join unnest(v_drv, v_drv_id) as n (drv, id) on n.drv = l.drv
    join unnest(v_edge_from_id, v_edge_to_id) as x (derivation, dependency) on x.derivation = n.id
    union
    select p.evaluation, n.id
    from unnest(v_entry_evaluation, v_entry_drv) as p (evaluation, name)
    join unnest(v_name, v_id) as n (name, id) on n.name = p.name
  ) as t
  order by 1, 2
  on conflict (evaluation, derivation_build) do nothing;

  insert into gradient.entry_point (evaluation, derivation, attribute, created_at)
  select distinct on (1, 3) p.evaluation, n.id, p.attribute, v_now
  from unnest(v_entry_evaluation, v_entry_attribute, v_entry_drv) as p (evaluation, attribute, drv)
  join unnest(v_name, v_id) as n (name, id) on n.name = p.drv
  order by 1, 3
  on conflict (evaluation, attribute) do nothing;

  insert into gradient.evaluation_message (evaluation, level, message, source, attribute, created_at)
  select (b.value ->> 'evaluation')::bigint, initcap(m.value ->> 'level')::gradient.message_level,
    m.value ->> 'message', 'nix-eval', m.value ->> 'attribute', v_now
  from jsonb_array_elements(p_batches) with ordinality as b (value, n)
  cross join lateral jsonb_array_elements(coalesce(b.value -> 'messages', '[]')) with ordinality as m (value, n)
  where b.n = any (v_batches)
    and not exists (
      select from gradient.evaluation_message k
      where k.evaluation = (b.value ->> 'evaluation')::bigint and k.message = m.value ->> 'message'
        and k.attribute is not distinct from m.value ->> 'attribute')
  order by b.n, m.n;

  -- Closures, then what may start. Seeds first, from what stands; the flips then count them down.
  v_grown := graph.adopt_references(v_fresh);
  select s.gained, s.lost into v_gained, v_lost
  from graph.seed_missing_runtime_deps(
    array(select unnest(v_fresh) union select unnest(v_builds) union select unnest(v_grown)),
    v_first || v_builds) as s;
  perform graph.seed_blocking_deps(v_fresh);

  -- Outputs that lie in the cache with complete closures need no build.
  with moved as (
    update gradient.derivation_build b
    set status = 'Substituted', substituted = true, updated_at = v_now
    from graph.complete_closure(v_id) c
    where b.derivation = c.derivation and b.status in ('Created', 'Skipped', 'Aborted')
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_substituted from moved m;

  select f.flipped, f.released into v_flipped, v_released
  from graph.became_fetchable(v_gained || v_substituted) as f;
  perform graph.lost_fetchability(v_lost);

  v_need := graph.update_need(v_flipped || v_lost);
  v_wanted := graph.gain_need(v_id || v_grown);
  perform graph.settle_need(v_need.gained || v_wanted, v_need.lost);
  perform graph.promote(v_id || v_released);
  perform graph.sync_ready(array(
    select b.derivation from gradient.derivation_build b where b.derivation = any (v_id) and b.status = 'Queued'));
  perform graph.check_evaluations_done(array(
    select distinct j.evaluation from gradient.build_job j where j.derivation_build = any (v_flipped || v_need.lost)));

  select jsonb_agg(jsonb_build_object(
      'evaluation', (b.value ->> 'evaluation')::bigint,
      'skipped', b.n <> all (v_batches),
      'walked', coalesce(w.walked, 0),
      'created', cardinality(v_builds),
      'entry_points', case when b.n = any (v_batches) then jsonb_array_length(coalesce(b.value -> 'entry_points', '[]')) else 0 end)
    order by b.n)
  into v_report
  from jsonb_array_elements(p_batches) with ordinality as b (value, n)
  left join (
    select l.n, count(*) as walked
    from unnest(v_lists_batch, v_lists_drv) as l (n, drv)
    join unnest(v_drv, v_drv_id) as d (drv, id) on d.drv = l.drv
    join unnest(v_fresh) as f (id) on f.id = d.id
    group by l.n
  ) as w on w.n = b.n;
  return coalesce(v_report, '[]');
end
$fn$;

comment on function graph.record(jsonb) is
  'Records batches of walks and everything that follows from them. p_batches: [{evaluation, assignment, derivations, entry_points, messages}] as on the wire. Returns a report for each batch: {evaluation, skipped, walked, created, entry_points}. Errors GR002, GR003, GR005 refuse the whole call.';
