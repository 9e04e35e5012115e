-- gradient.create_cache_token(cache, name, token_hash, can_write) -> id
-- A token that reads a private cache, or writes a cache. Only its hash is stored.
-- Locks: none beyond its row.
-- Execute: operator, server

create function gradient.create_cache_token(
  p_cache text,
  p_name text,
  p_token_hash bytea,
  p_can_write boolean default false)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_cache constant bigint := gradient.cache_id(p_cache);
  v_token bigint;
begin
  perform gradient.check_name('cache token', p_name);
  perform gradient.check_token_hash(p_token_hash);
  insert into gradient.cache_token (cache, name, token_hash, can_write, created_at)
  values (v_cache, p_name, p_token_hash, coalesce(p_can_write, false), gradient.current_time())
  on conflict do nothing
  returning id into v_token;
  if v_token is null then
    raise exception using errcode = 'GR007',
      message = format('Cache %s has a token named %s already, or the token is in use.', p_cache, p_name),
      hint = 'Choose another name and make a new token.';
  end if;
  return v_token;
end
$$;

comment on function gradient.create_cache_token(text, text, bytea, boolean) is
  'Adds a token to a cache and returns its id. p_token_hash: SHA-256 of the token. p_can_write: whether it may push as well as read. Raises GR002, GR005, GR007 (name or token in use).';
