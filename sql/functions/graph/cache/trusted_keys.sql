-- The keys whose signature may make a push into a cache count for the graph.
-- Locks: none.
-- Returns: public keys as Nix writes them.
-- Execute: server
create or replace function graph.trusted_keys(p_cache bigint)
  returns setof text
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return query
  select distinct k.public_key
  from gradient.project_cache s
  join gradient.project_trusted_key k on k.project = s.project
  where s.cache = p_cache;
end
$fn$;

comment on function graph.trusted_keys(bigint) is
  'Public keys (<name>:<base 64>) trusted by the projects that subscribe to the cache.';
