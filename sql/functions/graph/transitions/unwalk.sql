-- Forgets that derivations were walked, so that the next walk that meets them walks them again, and
-- so that no walk prunes above them. What they stand for stays: status, outputs, edges.
-- Locks: under the turn; the derivation rows by id. Returns: the derivations that were walked.
create or replace function graph.unwalk(p_ids bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_unwalked bigint[];
  v_recorded bigint[];
begin
  perform from gradient.derivation d where d.id = any (p_ids) and d.walked order by d.id for no key update;
  with moved as (
    update gradient.derivation d
    set walked = false
    where d.id = any (p_ids) and d.walked
    returning d.id, graph.recorded(true, d.drv_present, d.unwalked_inputs) as recorded
  )
  select coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.id) filter (where m.recorded), '{}')
  into v_unwalked, v_recorded
  from moved m;
  perform graph.ripple_recorded(null, v_recorded);
  return v_unwalked;
end
$fn$;

comment on function graph.unwalk(bigint[]) is
  'Marks p_ids as not walked and spreads that their subtrees are not recorded any more. Returns those that were walked.';
