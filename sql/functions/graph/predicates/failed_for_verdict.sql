-- Whether a shared build counts as failed in a verdict.
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.failed_for_verdict(p_status gradient.build_status)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout'), false);

comment on function graph.failed_for_verdict is
  'Whether a shared build makes the evaluations that name it Failed.';
