-- Whether the subtree of a derivation is recorded (customer/shared-builds, known_derivations).
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.recorded(p_walked boolean, p_drv_present boolean, p_unwalked_inputs integer)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_walked and p_drv_present and p_unwalked_inputs = 0, false);

comment on function graph.recorded is
  'Whether a derivation''s whole subtree is known: it is walked, its .drv is in the cache, and so is every input''s subtree. This answer prunes a walk.';
