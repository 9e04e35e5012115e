-- gradient.create_cache(name, key_name, public_key, private_key_encrypted, ...) -> id
-- A new binary cache with its signing key. The private part comes encrypted; the database never
-- sees it in the clear.
-- Locks: none beyond its row.
-- Execute: operator, server

create function gradient.create_cache(
  p_name text,
  p_key_name text,
  p_public_key text,
  p_private_key_encrypted bytea,
  p_public boolean default false,
  p_display_name text default null,
  p_priority integer default 40,
  p_max_nar_size bigint default null,
  p_max_storage_bytes bigint default null)
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_cache bigint;
begin
  perform gradient.check_name('cache', p_name);
  perform gradient.check_public_key(p_public_key);
  if p_key_name is distinct from split_part(p_public_key, ':', 1) then
    raise exception using errcode = 'GR005',
      message = format('The public key of cache %s is not of key %L.', p_name, p_key_name),
      detail = format('The key reads %s.', p_public_key);
  end if;
  if p_private_key_encrypted is null or octet_length(p_private_key_encrypted) = 0 then
    raise exception using errcode = 'GR005',
      message = format('Cache %s has no private key to sign with.', p_name),
      hint = 'Make caches with "gradient cache create", which makes the key and encrypts it.';
  end if;
  if p_max_nar_size <= 0 or p_max_storage_bytes < 0 or p_priority is null then
    raise exception using errcode = 'GR005',
      message = format('A limit of cache %s is not a positive number of bytes, or it has no priority.', p_name);
  end if;

  insert into gradient.cache
    (name, display_name, priority, key_name, public_key, private_key_encrypted, public,
     max_storage_bytes, max_nar_size, created_at)
  values
    (p_name, coalesce(p_display_name, p_name), p_priority, p_key_name, p_public_key,
     p_private_key_encrypted, coalesce(p_public, false), p_max_storage_bytes,
     coalesce(p_max_nar_size, 17179869184), gradient.current_time())
  on conflict (name) do nothing
  returning id into v_cache;
  if v_cache is null then
    raise exception using errcode = 'GR007',
      message = format('There is a cache %s already.', p_name),
      hint = format('select * from gradient.cache_overview where name = %L;', p_name);
  end if;
  return v_cache;
end
$$;

comment on function gradient.create_cache(text, text, text, bytea, boolean, text, integer, bigint, bigint) is
  'Makes a binary cache and returns its id. p_public_key: as Nix writes it, of the name p_key_name. p_public: readable without a token. p_priority: as in nix-cache-info, lower is asked first. '
  'p_max_nar_size, p_max_storage_bytes: bytes, null is the default (16 GiB, without limit). Raises GR005 for malformed values, GR007 when the name is taken.';
