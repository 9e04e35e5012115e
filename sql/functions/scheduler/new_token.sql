-- scheduler.new_token() -> text
-- A token nobody can guess: SHA-256 over two random UUIDs of the server's strong generator, which
-- is 244 random bits, as 64 hexadecimal digits. Only its hash is ever stored.

create function scheduler.new_token()
  returns text
  language sql volatile
as $$
  select encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'hex')
$$;

comment on function scheduler.new_token() is
  'A new random token of 64 hexadecimal digits.';
