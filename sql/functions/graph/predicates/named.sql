-- The shared builds among p_ids that some evaluation names.
-- Locks: none. One column to join in FROM; inlined by the planner, so it has no SET clause.
create or replace function graph.named(p_ids bigint[])
  returns table (derivation bigint)
  language sql stable parallel safe
as $fn$
  select u.id
  from unnest(p_ids) as u (id)
  where exists (select from gradient.build_job j where j.derivation_build = u.id);
$fn$;

comment on function graph.named(bigint[]) is
  'The shared builds among p_ids with at least one build_job.';
