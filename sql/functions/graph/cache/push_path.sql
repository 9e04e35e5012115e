-- A user's push into one cache. It backs no output and no source of any derivation, whatever its
-- path: it can be fetched from this cache, and nothing else in the graph sees it. A path that is
-- backed already is claimed for the cache instead, if it is the same NAR.
-- Locks: the cached_path row FOR KEY SHARE, then the pushed_path row.
-- Returns: {path, created, claimed}. Errors: GR002 no such cache, GR007 other content is there.
-- Execute: server
create or replace function graph.push_path(p_cache bigint, p_nar jsonb)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_path text := p_nar->>'path';
  v_hash text := substr(v_path, 12, 32);
  v_package text := substr(p_nar->>'path', 45);
  v_pushed text := (p_nar->>'nar_hash') || ' ' || substr(p_nar->>'path', 45);
  v_backed bigint;
  v_stored text;
  v_created boolean;
begin
  if not exists (select from gradient.cache c where c.id = p_cache) then
    raise exception using errcode = 'GR002',
      message = format('There is no cache %s.', p_cache),
      hint = 'select id, name from gradient.cache';
  end if;

  select p.id, p.nar_hash || ' ' || p.package into v_backed, v_stored
  from gradient.cached_path p
  where p.hash = v_hash
  for key share;
  if v_backed is null then
    insert into gradient.pushed_path as p
      (cache, hash, package, file_hash, file_size, nar_hash, nar_size, compression, "references",
       deriver, ca, created_at)
    values
      (p_cache, v_hash, v_package, p_nar->>'file_hash', (p_nar->>'file_size')::bigint,
       p_nar->>'nar_hash', (p_nar->>'nar_size')::bigint, p_nar->>'compression',
       array(select jsonb_array_elements_text(p_nar->'references')), p_nar->>'deriver',
       p_nar->>'ca', gradient.current_time())
    on conflict (cache, hash) do nothing;
    v_created := found;
    select p.nar_hash || ' ' || p.package into v_stored
    from gradient.pushed_path p
    where p.cache = p_cache and p.hash = v_hash;
  end if;
  if v_stored <> v_pushed then
    raise exception using errcode = 'GR007',
      message = format('%s is in the cache with other content; it is not replaced.', v_path),
      detail = format('Stored: %s. Pushed: %s.', v_stored, v_pushed),
      hint = 'Two builds of one derivation may differ: fetch the stored one with nix copy --from.';
  end if;
  if v_backed is not null then
    insert into gradient.cached_path_signature (cached_path, cache, created_at)
    values (v_backed, p_cache, gradient.current_time())
    on conflict (cached_path, cache) do nothing;
    v_created := found;
  end if;
  return jsonb_build_object(
    'path', v_path, 'created', v_created, 'claimed', v_backed is not null);
end
$fn$;

comment on function graph.push_path(bigint, jsonb) is
  'Puts a path that a user pushed into one cache: {path, file_hash, file_size, nar_hash, nar_size, compression, references, deriver, ca}, checked by the caller. It never makes an output or a source present. Again with the same NAR changes nothing; with another NAR error GR007.';
