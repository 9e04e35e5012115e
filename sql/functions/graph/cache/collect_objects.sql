-- Forgets stored NAR files that no path has: uploads whose narinfo never came, and files of paths
-- that are gone. The rows go first and for good; then the caller deletes each object for which
-- graph.is_orphan_object says so.
-- Locks: the rows it deletes, skipping those that another session holds.
-- Returns: the files whose rows were deleted, at most p_limit.
-- Execute: server
create or replace function graph.collect_objects(p_limit integer)
  returns table (file_hash text, compression text)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
#variable_conflict use_column
declare
  v_before timestamptz := gradient.current_time()
    - make_interval(secs => gradient.setting_int('object_grace'));
begin
  return query
  delete from gradient.nar_object n
  using (
    select o.file_hash
    from gradient.nar_object o
    where o.created_at < v_before
      and not exists (select from gradient.cached_path p where p.file_hash = o.file_hash)
      and not exists (select from gradient.pushed_path p where p.file_hash = o.file_hash)
    order by o.created_at
    limit p_limit
    for update skip locked
  ) orphan
  where n.file_hash = orphan.file_hash and n.created_at < v_before
  returning n.file_hash, n.compression;
end
$fn$;

comment on function graph.collect_objects(integer) is
  'Deletes the rows of at most p_limit stored NAR files that no path refers to and that are older than the setting object_grace. The caller deletes the objects: see graph.is_orphan_object.';
