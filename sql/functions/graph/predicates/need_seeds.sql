-- The derivations among p_ids that an entry point asks for: where the walk of need starts.
-- An aborted evaluation asks for nothing, nor does an entry point whose build a user aborted.
-- Locks: none. One column to join in FROM; inlined by the planner, so it has no SET clause.
create or replace function graph.need_seeds(p_ids bigint[])
  returns table (derivation bigint)
  language sql stable parallel safe
as $fn$
  select u.id
  from unnest(p_ids) as u (id)
  where exists (
    select
    from gradient.entry_point p
    join gradient.evaluation e on e.id = p.evaluation
    where p.derivation = u.id
      and e.status <> 'Aborted'
      and not exists (
        select from gradient.build_job j
        where j.evaluation = p.evaluation and j.derivation_build = p.derivation and j.aborted));
$fn$;

comment on function graph.need_seeds(bigint[]) is
  'The derivations among p_ids that an entry point of a retained, not aborted evaluation names.';
