-- Whether a shared build is going to be built, and so wants its build inputs.
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.is_builder(p_walked boolean, p_probed boolean, p_cache_available boolean, p_status gradient.build_status)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_walked and p_probed and not p_cache_available and p_status in ('Created', 'Queued', 'Building', 'FailedTransient'), false);

comment on function graph.is_builder is
  'Whether a shared build will be built from its inputs, so that it wants all of them.';
