-- The served rule of a cache, in its one place.
-- A path is served that this cache claims and whose object is stored; when some derivation
-- produces it, only while the runtime closure of one of its producers is complete. What a user
-- pushed into this cache is served where the cache has no claim on that path: a claim wins even
-- while its closure is not complete, so that a pushed path never stands in for a built one.
-- Locks: none.
-- Returns: the path as an object, or null when it is not served.
-- Execute: server
create or replace function graph.narinfo(p_cache text, p_hash text)
  returns jsonb
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_claimed boolean;
  v_served jsonb;
begin
  select true,
         case when (o.producers is null
                    or exists (select from graph.complete_closure(o.producers)))
                and exists (select from gradient.nar_object n where n.file_hash = p.file_hash)
         then jsonb_build_object(
           'path', '/nix/store/' || p.hash || '-' || p.package,
           'file_hash', p.file_hash, 'file_size', p.file_size,
           'nar_hash', p.nar_hash, 'nar_size', p.nar_size,
           'compression', p.compression, 'references', to_jsonb(p."references"),
           'deriver', p.deriver, 'ca', p.ca,
           'signature', case when starts_with(s.signature, c.key_name || ':')
                             then s.signature end)
         end
  into v_claimed, v_served
  from gradient.cache c
  join gradient.cached_path p on p.hash = p_hash
  join gradient.cached_path_signature s on s.cached_path = p.id and s.cache = c.id
  cross join lateral (
    select array_agg(d.derivation) as producers
    from gradient.derivation_output d
    where d.hash = p.hash
  ) o
  where c.name = p_cache and c.active;
  if v_claimed then
    return v_served;
  end if;

  select jsonb_build_object(
           'path', '/nix/store/' || p.hash || '-' || p.package,
           'file_hash', p.file_hash, 'file_size', p.file_size,
           'nar_hash', p.nar_hash, 'nar_size', p.nar_size,
           'compression', p.compression, 'references', to_jsonb(p."references"),
           'deriver', p.deriver, 'ca', p.ca,
           'signature', case when starts_with(p.signature, c.key_name || ':')
                             then p.signature end)
  into v_served
  from gradient.cache c
  join gradient.pushed_path p on p.cache = c.id and p.hash = p_hash
  where c.name = p_cache and c.active
    and exists (select from gradient.nar_object n where n.file_hash = p.file_hash);
  return v_served;
end
$fn$;

comment on function graph.narinfo(text, text) is
  'What the cache serves under a store hash: path, file_hash, file_size, nar_hash, nar_size (bytes), compression, references (base names), deriver, ca, signature (null: not signed yet with the cache''s key). Null: not served, because nothing is there, this cache has no claim, or the closure of a built path is not complete.';
