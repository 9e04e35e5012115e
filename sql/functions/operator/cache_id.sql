-- gradient.cache_id(name) -> id
-- The cache of that name, for functions that people call with names.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.cache_id(p_name text)
  returns bigint
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_cache bigint;
begin
  select c.id into v_cache from gradient.cache c where c.name = p_name;
  if v_cache is null then
    raise exception using errcode = 'GR002',
      message = format('There is no cache %L.', p_name),
      hint = 'select name from gradient.cache_overview;';
  end if;
  return v_cache;
end
$$;

comment on function gradient.cache_id(text) is
  'The id of a cache by its name. Raises GR002 when there is none.';
