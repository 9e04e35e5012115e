-- A NAR file was received completely and lies in the object store.
-- The lock orders this with graph.is_orphan_object: either the collector sees the row, or the
-- caller, who looks for the object once more afterwards, sees that it was collected.
-- Locks: the object's advisory lock (645, hash), then its row.
-- Returns: nothing.
-- Execute: server
create or replace function graph.nar_uploaded(p_nar jsonb)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  perform pg_advisory_xact_lock(645, hashtext(p_nar->>'file_hash'));
  insert into gradient.nar_object
    (file_hash, file_size, nar_hash, nar_size, compression, content_hash, created_at)
  values
    (p_nar->>'file_hash', (p_nar->>'file_size')::bigint, p_nar->>'nar_hash',
     (p_nar->>'nar_size')::bigint, p_nar->>'compression', p_nar->>'content_hash',
     gradient.current_time())
  on conflict (file_hash) do update
  set created_at = excluded.created_at;
end
$fn$;

comment on function graph.nar_uploaded(jsonb) is
  'Records a stored NAR file: {file_hash, file_size, nar_hash, nar_size, compression, content_hash}; hashes as sha256:<base 32>, sizes in bytes, content_hash of the file in the NAR of one plain file, else null. The same file again starts its grace anew.';
