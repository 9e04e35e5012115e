-- Of the files that lie in the store, those without a row: left by a server that died between
-- writing one and recording it, or between forgetting one and deleting it.
-- Locks: none.
-- Returns: those of p_file_hashes that no row knows.
-- Execute: server
create or replace function graph.unrecorded_objects(p_file_hashes text[])
  returns setof text
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return query
  select u.file_hash
  from unnest(p_file_hashes) as u (file_hash)
  where not exists (select from gradient.nar_object n where n.file_hash = u.file_hash)
    and not exists (select from gradient.cached_path p where p.file_hash = u.file_hash)
    and not exists (select from gradient.pushed_path p where p.file_hash = u.file_hash);
end
$fn$;

comment on function graph.unrecorded_objects(text[]) is
  'Those of the given NAR files (sha256:<base 32>) that no row knows; see graph.is_orphan_object.';
