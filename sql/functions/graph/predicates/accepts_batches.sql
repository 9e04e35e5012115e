-- Whether an evaluation takes batches (customer/shared-builds, Concurrent Walks).
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.accepts_batches(p_status gradient.evaluation_status)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_status in ('Fetching', 'EvaluatingFlake', 'EvaluatingDerivation'), false);

comment on function graph.accepts_batches is
  'Whether batches of a walk are recorded for an evaluation in this status; others are dropped as stale.';
