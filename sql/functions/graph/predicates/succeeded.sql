-- Whether a shared build ended well (TERMINAL_SUCCESS).
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.succeeded(p_status gradient.build_status)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_status in ('Completed', 'Substituted'), false);

comment on function graph.succeeded is
  'Whether a shared build ended well: TERMINAL_SUCCESS.';
