-- Whether an object may be deleted from the store. True holds until the transaction ends: an
-- upload of the same file waits for it, and then looks for its object once more.
-- Locks: the object's advisory lock (645, hash).
-- Returns: true when nothing knows the file.
-- Execute: server
create or replace function graph.is_orphan_object(p_file_hash text)
  returns boolean
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  perform pg_advisory_xact_lock(645, hashtext(p_file_hash));
  return not exists (select from gradient.nar_object n where n.file_hash = p_file_hash)
    and not exists (select from gradient.cached_path p where p.file_hash = p_file_hash)
    and not exists (select from gradient.pushed_path p where p.file_hash = p_file_hash);
end
$fn$;

comment on function graph.is_orphan_object(text) is
  'Whether no row knows the NAR file (sha256:<base 32>). Delete its object in the same transaction.';
