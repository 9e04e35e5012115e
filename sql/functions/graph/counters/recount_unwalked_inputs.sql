-- Writes unwalked_inputs of the given derivations as an absolute count, without a spread.
-- Locks: the derivation rows. Returns: the counts in the order of p_ids.
create or replace function graph.recount_unwalked_inputs(p_ids bigint[])
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
      from gradient.derivation_dependency e
      join gradient.derivation i on i.id = e.dependency
      where e.derivation = u.id and e.kind <> 'Runtime'
        and not graph.recorded(i.walked, i.drv_present, i.unwalked_inputs)) as inputs
    from unnest(p_ids) with ordinality as u (id, n)
  ), written as (
    update gradient.derivation d set unwalked_inputs = c.inputs
    from counted c
    where d.id = c.id and d.unwalked_inputs <> c.inputs
  )
  select array_agg(c.inputs order by c.n) into v_counts from counted c;
  return v_counts;
end
$fn$;

comment on function graph.recount_unwalked_inputs(bigint[]) is
  'Counts unwalked_inputs of p_ids anew from the edges and writes them. Returns the counts in the order of p_ids.';
