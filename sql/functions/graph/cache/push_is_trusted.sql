-- Whether a signed push may back a path for everybody. Builds are shared by all projects, so a key
-- that one project trusts must not decide what another one gets: every project that names a
-- producer of the path has to trust one of the keys too.
-- Locks: none.
-- Returns: true or false.
-- Execute: server
create or replace function graph.push_is_trusted(p_cache bigint, p_hash text, p_keys text[])
  returns boolean
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return exists (
      select from gradient.project_cache s
      join gradient.project_trusted_key k on k.project = s.project
      where s.cache = p_cache and k.public_key = any(p_keys))
    and not exists (
      select from gradient.derivation_output o
      join gradient.build_job j on j.derivation_build = o.derivation
      join gradient.evaluation e on e.id = j.evaluation
      join gradient.task t on t.id = e.task
      where o.hash = p_hash
        and not exists (
          select from gradient.project_trusted_key k
          where k.project = t.project and k.public_key = any(p_keys)));
end
$fn$;

comment on function graph.push_is_trusted(bigint, text, text[]) is
  'Whether a push of the store hash, validly signed by these public keys, may back it: a project that subscribes to the cache trusts one of them, and so does every project that has the path built.';
