-- Writes missing_sources of the given shared builds as an absolute count, without a spread.
-- Locks: the derivation_build rows. Returns: the counts in the order of p_ids.
create or replace function graph.recount_missing_sources(p_ids bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_counts bigint[];
begin
  with counted as (
    select u.id, u.n, (
      select count(*)
      from gradient.derivation_input_source s
      where s.derivation = u.id
        and not exists (select from gradient.cached_path c where c.hash = s.hash)) as missing
    from unnest(p_ids) with ordinality as u (id, n)
  ), written as (
    update gradient.derivation_build b set missing_sources = c.missing
    from counted c
    where b.derivation = c.id and b.missing_sources <> c.missing
  )
  select array_agg(c.missing order by c.n) into v_counts from counted c;
  return v_counts;
end
$fn$;

comment on function graph.recount_missing_sources(bigint[]) is
  'Counts missing_sources of p_ids anew from the sources and writes them. Returns the counts in the order of p_ids.';
