-- Upstream caches have paths: what their narinfo says is kept on the outputs, and a shared build
-- with every output there or in our cache is substituted instead of built (reference D.2). A copy
-- upstream never completes a closure: only our cache does.
-- p_hits: {store hash: {url, nar_hash, file_hash, file_size, nar_size, references, deriver, ca}}.
-- Locks: the turn; keys; shared builds by derivation.
-- Returns: {outputs: newly known upstream, available: shared builds newly substitutable, probe: ids
-- to ask about next}. Idempotent. Errors: GR005 malformed content.
-- Execute: server
create or replace function graph.upstream_hits(p_hits jsonb)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_bad text;
  v_outputs integer;
  v_touched bigint[];
  v_grown bigint[];
  v_available bigint[];
  v_seeded record;
  v_flipped bigint[];
  v_released bigint[];
  v_probe bigint[];
begin
  perform graph.take_turn();
  if jsonb_typeof(p_hits) is distinct from 'object' then
    raise exception using errcode = 'GR005',
      message = 'Upstream hits are an object of store hashes.',
      hint = 'select graph.upstream_hits(''{"<hash>": {"url": "…", "nar_size": 1, "references": []}}'');';
  end if;
  select h.hash into v_bad
  from jsonb_each(p_hits) as h (hash, info)
  where h.hash !~ '^[0-9a-df-np-sv-z]{32}$'
    or jsonb_typeof(h.info) <> 'object' or h.info ->> 'url' is null
    or jsonb_typeof(coalesce(h.info -> 'references', '[]')) <> 'array'
    or coalesce(h.info ->> 'nar_size', '0') !~ '^[0-9]{1,18}$'
    or exists (
      select from jsonb_array_elements_text(
        case when jsonb_typeof(h.info -> 'references') = 'array' then h.info -> 'references' else '[]' end) as r (name)
      where not graph.is_store_name(r.name))
  limit 1;
  if found then
    raise exception using errcode = 'GR005',
      message = format('Malformed upstream hit "%s".', v_bad),
      hint = 'A hit is {url, nar_hash, file_hash, file_size, nar_size, references (base names), deriver, ca} under a store hash.';
  end if;

  v_touched := array(
    select distinct o.derivation
    from jsonb_object_keys(p_hits) as h (hash)
    join gradient.derivation_output o on o.hash = h.hash
    order by 1);
  perform graph.lock_shared_builds(null, v_touched);
  perform from gradient.derivation_build b where b.derivation = any (v_touched) order by b.derivation for no key update;

  update gradient.derivation_output o
  set external_url = h.info ->> 'url', external = h.info - 'url',
      nar_size = coalesce(o.nar_size, (h.info ->> 'nar_size')::bigint)
  from jsonb_each(p_hits) as h (hash, info)
  where o.hash = h.hash and o.cached_path is null and o.external_url is null;
  get diagnostics v_outputs = row_count;

  -- What the copy upstream refers to is needed at run time, as what ours refers to is.
  with edges as (
    select distinct o.derivation, t.derivation as dependency
    from gradient.derivation_output o
    cross join lateral jsonb_array_elements_text(coalesce(o.external -> 'references', '[]')) as r (name)
    join gradient.derivation_output t on t.hash = left(r.name, 32)
    where o.derivation = any (v_touched) and t.derivation <> o.derivation
      and not exists (
        select from gradient.derivation_output own
        where own.derivation = o.derivation and own.hash = t.hash)
  ), grown as (
    insert into gradient.derivation_dependency as e (derivation, dependency, kind)
    select n.derivation, n.dependency, 'Runtime'
    from edges n
    where not exists (
      select from gradient.derivation_dependency k
      where k.derivation = n.derivation and k.dependency = n.dependency and k.kind <> 'Build')
    order by 1, 2
    on conflict (derivation, dependency) do update set kind = 'Both' where e.kind = 'Build'
    returning e.derivation
  )
  select coalesce(array_agg(distinct g.derivation), '{}') into v_grown from grown g;

  with moved as (
    update gradient.derivation_build b
    set cache_available = true, updated_at = gradient.current_time()
    where b.derivation = any (v_touched) and not b.cache_available and not graph.succeeded(b.status)
      and not exists (
        select from gradient.derivation_output o
        where o.derivation = b.derivation and o.cached_path is null and o.external_url is null)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_available from moved m;

  v_seeded := graph.seed_missing_runtime_deps(v_grown, null);
  select f.flipped, f.released into v_flipped, v_released from graph.became_fetchable(v_seeded.gained) as f;
  perform graph.lost_fetchability(v_seeded.lost);
  v_probe := graph.follow_probe(v_touched || v_flipped || v_seeded.lost, v_released);
  return jsonb_build_object(
    'outputs', v_outputs, 'available', cardinality(v_available), 'probe', to_jsonb(v_probe));
end
$fn$;

comment on function graph.upstream_hits(jsonb) is
  'Keeps what upstream caches said they have, {store hash: {url, nar_hash, file_hash, file_size, nar_size (bytes), references (base names), deriver, ca}}, and makes shared builds substitutable whose every output is there. Returns {outputs, available, probe: ids to ask about next}. Error GR005.';
