-- Closes an assignment, and with it the attempt that it opened.
-- Locks: the assignment's row, the attempt's row. Returns: nothing.
create or replace function graph.close_assignment(
  p_assignment bigint, p_outcome gradient.assignment_outcome, p_outcome_class text,
  p_attempt gradient.attempt_outcome, p_message text)
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  update gradient.dispatched_job o
  set finished_at = gradient.current_time(), outcome = p_outcome, outcome_class = p_outcome_class
  where o.id = p_assignment and o.finished_at is null;
  update gradient.build_attempt a
  set outcome = p_attempt, outcome_class = p_outcome_class,
      failure_message = case
        when length(p_message) > 8192 then left(p_message, 8180) || ' [truncated]' else p_message end,
      build_finished_at = gradient.current_time()
  where a.dispatched_job = p_assignment and a.outcome = 'Running';
end
$fn$;

comment on function graph.close_assignment(bigint, gradient.assignment_outcome, text, gradient.attempt_outcome, text) is
  'Closes assignment p_assignment and its running attempt. p_outcome_class: a row of gradient.outcome_class, or null for success; p_message: kept up to 8 KiB.';
