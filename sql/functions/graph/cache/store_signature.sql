-- Keeps the signature that a server made for the first request of a path.
-- Locks: the claim's row, or the pushed path's.
-- Returns: nothing; a path that is gone or has other content meanwhile is left alone.
-- Execute: server
create or replace function graph.store_signature(
  p_cache text, p_hash text, p_nar_hash text, p_signature text)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  update gradient.cached_path_signature s
  set signature = p_signature
  from gradient.cached_path p, gradient.cache c
  where c.name = p_cache and p.hash = p_hash and p.nar_hash = p_nar_hash
    and s.cached_path = p.id and s.cache = c.id
    and s.signature is distinct from p_signature;

  update gradient.pushed_path p
  set signature = p_signature
  from gradient.cache c
  where c.name = p_cache and p.cache = c.id and p.hash = p_hash and p.nar_hash = p_nar_hash
    and p.signature is distinct from p_signature;
end
$fn$;

comment on function graph.store_signature(text, text, text, text) is
  'Stores the signature of a path in a cache: p_nar_hash is the content that it covers, so a signature never lands on another content.';
