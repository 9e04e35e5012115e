-- Stops trusting one path of the cache (reference D.7).
-- p_kind: "missing_nar" its object was not found; "path" an operator invalidates it; "cache_claim"
-- the cache p_cache drops its claim, and the path goes with the last claim.
-- p_hash: the store hash, base name or store path. p_object_present: whether its object is stored;
-- null is unknown, and counts as stored. A path that nothing produces, whose object is stored, is
-- kept: it may be the only copy of a source, or a .drv that nothing but a walk can make again.
-- Locks: the turn; keys of the producers exclusive; cached_path by hash; then as
-- graph.retire_outputs.
-- Returns: {producers: how many make the path, cached_path: the row deleted or null,
-- others_remain: whether other caches claim it still}. An unknown path is an empty report.
-- Idempotent. Errors: GR002 no such cache; GR005 no such kind, malformed path, no cache given.
-- Execute: server, operator
create or replace function graph.demote(
  p_kind text, p_hash text, p_cache bigint default null, p_object_present boolean default null)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_hash constant text := left(regexp_replace(p_hash, '^/nix/store/', ''), 32);
  v_empty constant jsonb := jsonb_build_object('producers', 0, 'cached_path', null, 'others_remain', false);
  v_path bigint;
  v_producers bigint[];
  v_retired record;
begin
  perform graph.take_turn();
  if coalesce(p_kind not in ('missing_nar', 'path', 'cache_claim'), true) then
    raise exception using errcode = 'GR005',
      message = format('"%s" is no kind of demotion.', p_kind),
      hint = 'Kinds: missing_nar, path, cache_claim.';
  end if;
  if coalesce(v_hash !~ '^[0-9a-df-np-sv-z]{32}$', true) then
    raise exception using errcode = 'GR005',
      message = format('"%s" is no store path or hash.', p_hash),
      hint = 'select hash, package from gradient.cached_path order by id desc limit 20;';
  end if;
  if p_kind = 'cache_claim' and p_cache is null then
    raise exception using errcode = 'GR005',
      message = format('The claim of which cache on %s?', v_hash),
      hint = 'select id, name from gradient.cache;';
  end if;
  if p_cache is not null and not exists (select from gradient.cache c where c.id = p_cache) then
    raise exception using errcode = 'GR002',
      message = format('There is no cache %s.', p_cache),
      hint = 'select id, name from gradient.cache;';
  end if;

  v_producers := array(
    select distinct o.derivation from gradient.derivation_output o where o.hash = v_hash order by 1);
  perform graph.lock_shared_builds(null, v_producers);
  select c.id into v_path from gradient.cached_path c where c.hash = v_hash for update;
  if p_kind = 'cache_claim' then
    delete from gradient.cached_path_signature s where s.cached_path = v_path and s.cache = p_cache;
    if not found then
      return v_empty;
    end if;
    if exists (select from gradient.cached_path_signature s where s.cached_path = v_path) then
      return v_empty || '{"others_remain": true}';
    end if;
  end if;

  if cardinality(v_producers) = 0 and (v_path is null or p_object_present is not false) then
    return v_empty;
  end if;
  update gradient.derivation_output o
  set external_url = null, external = null
  where o.hash = v_hash and (o.external_url is not null or o.external is not null);
  update gradient.derivation_build b
  set cache_available = false
  where b.derivation = any (v_producers) and b.cache_available;
  v_retired := graph.retire_outputs(array[v_hash]);
  return jsonb_build_object(
    'producers', cardinality(v_producers), 'cached_path', v_retired.paths[1], 'others_remain', false);
end
$fn$;

comment on function graph.demote(text, text, bigint, boolean) is
  'Stops trusting the path p_hash (store hash, base name or path): what produces it is built again, what needs it waits. p_kind: missing_nar, path, or cache_claim (of cache p_cache); p_object_present: whether its object is stored, null is unknown: then a path that nothing produces is kept. Returns {producers, cached_path, others_remain}. Errors GR002, GR005.';
