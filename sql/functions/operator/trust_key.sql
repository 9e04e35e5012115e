-- gradient.trust_key(project, public_key)
-- Paths signed with this key may back outputs of the project's builds. Said twice it changes nothing.
-- Locks: none beyond its row.
-- Execute: operator, server

create function gradient.trust_key(p_project text, p_public_key text)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform gradient.check_public_key(p_public_key);
  insert into gradient.project_trusted_key (project, public_key)
  values (gradient.project_id(p_project), p_public_key)
  on conflict do nothing;
end
$$;

comment on function gradient.trust_key(text, text) is
  'Lets a project trust a public key, written as in trusted-public-keys of Nix. Raises GR002 for an unknown project, GR005 for a malformed key.';
