-- Whether a shared build keeps an evaluation open.
-- Locks: none. A predicate over the columns of one row: no SET clause, so that the planner inlines it.
create or replace function graph.blocks_evaluation(p_status gradient.build_status, p_wanted boolean)
  returns boolean
  language sql immutable parallel safe
return coalesce((p_wanted and p_status in ('Created', 'Queued', 'Building', 'FailedTransient', 'Skipped')) or p_status in ('Queued', 'Building'), false);

comment on function graph.blocks_evaluation is
  'Whether a shared build keeps the evaluations that name it from ending.';
