-- Which of these .drv names hold a recorded subtree, so that a walk may prune there. A read that
-- misses a queued write skips less, never wrongly.
-- Locks: none. Returns: the names known; none for an evaluation that walks fully.
-- Execute: server, operator
create or replace function graph.known_derivations(p_evaluation bigint, p_drvs text[])
  returns setof text
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
  select n.name
  from unnest(p_drvs) as n (name)
  join gradient.derivation d on d.hash = left(n.name, 32) and d.name = substr(n.name, 34, length(n.name) - 37)
  where graph.recorded(d.walked, d.drv_present, d.unwalked_inputs)
    and exists (select from gradient.evaluation e where e.id = p_evaluation and e.walk_mode = 'Pruned')
$fn$;

comment on function graph.known_derivations(bigint, text[]) is
  'Which of p_drvs (<hash>-<name>.drv) hold a recorded subtree, for the walk of p_evaluation. Returns none when that evaluation walks fully.';
