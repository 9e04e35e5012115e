-- The derivations among p_ids with at least one output and every output in the cache.
-- Locks: none. One column to join in FROM; inlined by the planner, so it has no SET clause.
create or replace function graph.present(p_ids bigint[])
  returns table (derivation bigint)
  language sql stable parallel safe
as $fn$
  select o.derivation
  from unnest(p_ids) as u (id)
  join gradient.derivation_output o on o.derivation = u.id
  group by o.derivation
  having bool_and(o.cached_path is not null);
$fn$;

comment on function graph.present(bigint[]) is
  'The derivations among p_ids whose every output is backed by a cached path. A derivation without outputs is not present.';
