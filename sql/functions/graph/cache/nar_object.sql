-- The measured NAR file behind a narinfo that is about to be committed.
-- Asking renews the grace of an object that nothing refers to yet: whoever asks is about to refer
-- to it, and the collector must not come in between.
-- Locks: the object's row, when its grace is more than half over.
-- Returns: one row, or none when no such file was received.
-- Execute: server
create or replace function graph.nar_object(p_file_hash text)
  returns table (
    file_hash text, file_size bigint, nar_hash text, nar_size bigint, compression text,
    content_hash text)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  update gradient.nar_object n
  set created_at = gradient.current_time()
  where n.file_hash = p_file_hash
    and n.created_at < gradient.current_time()
      - make_interval(secs => gradient.setting_int('object_grace') / 2);

  return query
  select n.file_hash, n.file_size, n.nar_hash, n.nar_size, n.compression, n.content_hash
  from gradient.nar_object n
  where n.file_hash = p_file_hash;
end
$fn$;

comment on function graph.nar_object(text) is
  'What was measured of the NAR file with that hash (sha256:<base 32>) when it was received; sizes in bytes. Keeps it from being collected for at least half of the setting object_grace. No row: never received, or collected.';
