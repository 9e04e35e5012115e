-- What a request to a cache may do, and what the server needs to answer it.
-- Locks: none.
-- Returns: one row, or none when there is no active cache of that name.
-- Execute: server
create or replace function graph.cache_access(p_cache text, p_token text)
  returns table (
    cache bigint, readable boolean, writable boolean, public boolean, key_name text,
    public_key text, private_key_encrypted bytea, max_nar_size bigint, priority integer)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return query
  select c.id, c.public or t.id is not null, coalesce(t.can_write, false), c.public, c.key_name,
         c.public_key, c.private_key_encrypted, c.max_nar_size, c.priority
  from gradient.cache c
  left join gradient.cache_token t
    on t.cache = c.id and t.token_hash = sha256(convert_to(p_token, 'UTF8'))
  where c.name = p_cache and c.active;
end
$fn$;

comment on function graph.cache_access(text, text) is
  'Rights of a token (null: none given) on the cache of that name. A public cache is readable without one; writing always needs a token made with can_write. No row: no active cache of that name. max_nar_size is in bytes.';
