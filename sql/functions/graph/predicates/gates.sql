-- The queue conditions over the columns of one shared build and its derivation.
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.gates(p_walked boolean, p_wanted boolean, p_cache_available boolean, p_probed boolean, p_blocking_deps integer, p_drv_present boolean, p_missing_sources integer)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_walked and p_wanted and (p_cache_available or (p_probed and p_blocking_deps = 0 and p_drv_present and p_missing_sources = 0)), false);

comment on function graph.gates is
  'The queue conditions of a shared build, but for being named by an evaluation, which is another table''s answer (graph.named).';
