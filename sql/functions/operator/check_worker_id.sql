-- gradient.check_worker_id(worker)
-- The one rule for worker ids.
-- Locks: none.
-- Execute: none

create function gradient.check_worker_id(p_worker text)
  returns void
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if p_worker is null or p_worker !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$' then
    raise exception using errcode = 'GR005',
      message = format('A worker cannot be named %L.', p_worker),
      hint = 'Use letters, digits, dots, dashes and underscores, at most 63, beginning with a letter or a digit.';
  end if;
end
$$;

comment on function gradient.check_worker_id(text) is
  'Raises GR005 unless the id may be that of a worker.';
