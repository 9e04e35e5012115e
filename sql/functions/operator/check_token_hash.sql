-- gradient.check_token_hash(hash)
-- Tokens are stored as SHA-256 and in no other form.
-- Locks: none.
-- Execute: none

create function gradient.check_token_hash(p_token_hash bytea)
  returns void
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if p_token_hash is null or octet_length(p_token_hash) <> 32 then
    raise exception using errcode = 'GR005',
      message = 'The token hash is not a SHA-256 of 32 bytes.',
      hint = 'Pass the hash of the token, never the token: sha256(convert_to(token, ''UTF8'')).';
  end if;
end
$$;

comment on function gradient.check_token_hash(bytea) is
  'Raises GR005 unless the value is as long as a SHA-256.';
