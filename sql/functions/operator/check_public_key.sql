-- gradient.check_public_key(key)
-- A public key as Nix writes it: a name, a colon, 32 bytes of Ed25519 in base64.
-- Locks: none.
-- Execute: none

create function gradient.check_public_key(p_public_key text)
  returns void
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if p_public_key is null or p_public_key !~ '^[^:[:space:]]+:[A-Za-z0-9+/]{43}=$' then
    raise exception using errcode = 'GR005',
      message = format('%L is not a public key as Nix writes it.', p_public_key),
      hint = 'It looks like cache.example.org-1: followed by 44 characters of base64.';
  end if;
end
$$;

comment on function gradient.check_public_key(text) is
  'Raises GR005 unless the text is <name>:<base64 of 32 bytes>, as in trusted-public-keys of Nix.';
