-- The assignment that a report belongs to, locked: what a worker says counts only for its own.
-- p_final: the report that closes the assignment ('Completed', 'Failed'), or null. An assignment that
-- the same report closed already is returned closed, so that a repeated report changes nothing.
-- Locks: the assignment's row. Returns: the row. Errors: GR003.
create or replace function graph.own_assignment(
  p_assignment bigint, p_worker text, p_kind gradient.assignment_kind, p_final gradient.assignment_outcome)
  returns gradient.dispatched_job
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_job gradient.dispatched_job;
begin
  select * into v_job from gradient.dispatched_job o where o.id = p_assignment for update;
  if not found or v_job.worker_id <> p_worker or v_job.kind <> p_kind
     or (v_job.finished_at is not null and v_job.outcome is distinct from p_final) then
    raise exception using errcode = 'GR003',
      message = format('Assignment %s is not open for worker %s.', p_assignment, p_worker),
      detail = case
        when v_job.id is null then 'There is no such assignment.'
        when v_job.worker_id <> p_worker then format('It is worker %s''s.', v_job.worker_id)
        when v_job.kind <> p_kind then format('It is of kind %s.', v_job.kind)
        else format('It ended %s at %s.', v_job.outcome, v_job.finished_at)
      end,
      hint = format('select * from gradient.dispatched_job where id = %s;', p_assignment);
  end if;
  return v_job;
end
$fn$;

comment on function graph.own_assignment(bigint, text, gradient.assignment_kind, gradient.assignment_outcome) is
  'Locks and returns assignment p_assignment if it is open for p_worker, or closed by the very outcome p_final. Error GR003 otherwise.';
