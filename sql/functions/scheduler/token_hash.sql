-- scheduler.token_hash(token) -> bytea
-- What is stored of a token, and compared with.

create function scheduler.token_hash(p_token text)
  returns bytea
  language sql immutable strict parallel safe
  set search_path = pg_catalog, pg_temp
as $$ select sha256(convert_to(p_token, 'UTF8')) $$;

comment on function scheduler.token_hash(text) is 'SHA-256 of a token: the form in which every token is stored.';
