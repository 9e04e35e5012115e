-- Which NAR files a cache hands out: those of the paths it claims, and of what was pushed into it.
-- Locks: none.
-- Returns: one row, or none.
-- Execute: server
create or replace function graph.stored_nar(p_cache text, p_file_hash text)
  returns table (file_size bigint, compression text)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return query
  select n.file_size, n.compression
  from gradient.nar_object n
  join gradient.cache c on c.name = p_cache and c.active
  where n.file_hash = p_file_hash
    and (exists (select from gradient.cached_path p
                 join gradient.cached_path_signature s on s.cached_path = p.id
                 where p.file_hash = n.file_hash and s.cache = c.id)
         or exists (select from gradient.pushed_path p
                    where p.file_hash = n.file_hash and p.cache = c.id));
end
$fn$;

comment on function graph.stored_nar(text, text) is
  'Size (bytes) and compression of a NAR file (sha256:<base 32>) that the cache may hand out. No row: unknown, or no path of this cache has it, however well known it is to others.';
