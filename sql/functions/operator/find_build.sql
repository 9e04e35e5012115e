-- gradient.find_build(name) -> id
-- The shared build that a person means: by its id, by the name or path of its .drv, by an output
-- path, or by the beginning of the hash of its .drv.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.find_build(p_name text)
  returns bigint
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c_shown constant integer := 5;
  v_name constant text := regexp_replace(btrim(coalesce(p_name, '')), '^/nix/store/', '');
  v_hash constant text := split_part(v_name, '-', 1);
  v_found bigint[];
begin
  if v_name ~ '^[0-9]{1,18}$' then
    select array_agg(b.derivation) into v_found
    from gradient.derivation_build b
    where b.derivation = v_name::bigint;
  end if;

  if v_found is null and v_hash ~ '^[0-9a-df-np-sv-z]{4,32}$' then
    if length(v_hash) = 32 then
      select array_agg(b.derivation order by b.derivation) into v_found
      from gradient.derivation_build b
      join gradient.derivation d on d.id = b.derivation
      where d.hash = v_hash;
      if v_found is null then
        select array_agg(distinct b.derivation order by b.derivation) into v_found
        from gradient.derivation_output o
        join gradient.derivation_build b on b.derivation = o.derivation
        where o.hash = v_hash;
      end if;
    elsif v_hash = v_name then
      select array_agg(f.derivation order by f.derivation) into v_found
      from (
        select b.derivation
        from gradient.derivation d
        join gradient.derivation_build b on b.derivation = d.id
        where starts_with(d.hash, v_hash)
        limit c_shown + 1
      ) f;
    end if;
  end if;

  if v_found is null then
    raise exception using errcode = 'GR002',
      message = format('There is no build %L.', p_name),
      hint = 'Name it by its id, its .drv, an output path, or at least 4 characters of the hash of its .drv.';
  end if;
  if cardinality(v_found) > 1 then
    raise exception using errcode = 'GR005',
      message = format('%L is more than one build.', p_name),
      detail = (
        select string_agg(format('%s: %s-%s.drv', d.id, d.hash, d.name), ', ' order by d.id)
        from gradient.derivation d
        where d.id = any(v_found[1:c_shown])),
      hint = 'Write more of the hash, or the id.';
  end if;
  return v_found[1];
end
$$;

comment on function gradient.find_build(text) is
  'The id of the shared build named by an id, a .drv (name or path), an output path or a prefix of at least 4 characters of the .drv''s hash. Raises GR002 when there is none, GR005 when there are several (DETAIL lists them).';
