-- Whether a shared build is open: neither fetchable nor finally failed.
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.is_open(p_fetchable boolean, p_status gradient.build_status)
  returns boolean
  language sql immutable parallel safe
return coalesce(not p_fetchable and p_status not in ('FailedPermanent', 'DependencyFailed', 'FailedTimeout'), false);

comment on function graph.is_open is
  'Whether something may still have to happen before a shared build''s outputs can be fetched.';
