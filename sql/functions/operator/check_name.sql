-- gradient.check_name(kind, name)
-- The one rule for names of teams, projects, caches and tasks: they stand in URLs and on command
-- lines.
-- Locks: none.
-- Execute: none

create function gradient.check_name(p_kind text, p_name text)
  returns void
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if p_name is null or p_name !~ '^[a-z0-9][a-z0-9-]{0,62}$' then
    raise exception using errcode = 'GR005',
      message = format('A %s cannot be named %L.', p_kind, p_name),
      hint = 'Use lower-case letters, digits and dashes, at most 63, beginning with a letter or a digit.';
  end if;
end
$$;

comment on function gradient.check_name(text, text) is
  'Raises GR005 unless the name may be that of a team, project, cache or task (p_kind, for the message).';
