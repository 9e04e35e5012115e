-- scheduler.token_hash(token) -> bytea
-- What is stored of a token, and compared with.

create function scheduler.token_hash(p_token text)
  returns bytea
  language sql stable strict parallel safe
as $$ select sha256(convert_to(p_token, 'UTF8')) $$;

comment on function scheduler.token_hash(text) is 'SHA-256 of a token: the form in which every token is stored.';
