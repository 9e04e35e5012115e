-- The shared builds among p_ids that are present and wait for no runtime input.
-- Locks: none. One column to join in FROM; inlined by the planner, so it has no SET clause.
create or replace function graph.complete_closure(p_ids bigint[])
  returns table (derivation bigint)
  language sql stable parallel safe
as $fn$
  select b.derivation
  from graph.present(p_ids) p
  join gradient.derivation_build b on b.derivation = p.derivation
  where b.missing_runtime_deps = 0;
$fn$;

comment on function graph.complete_closure(bigint[]) is
  'The shared builds among p_ids with a complete closure: every output in the cache, and every runtime input complete too.';
