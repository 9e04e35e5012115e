-- Whether an evaluation is in flight.
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.is_active(p_status gradient.evaluation_status)
  returns boolean
  language sql immutable parallel safe
return coalesce(p_status in ('Queued', 'Fetching', 'EvaluatingFlake', 'EvaluatingDerivation', 'Building', 'Waiting'), false);

comment on function graph.is_active is
  'Whether an evaluation is in flight.';
