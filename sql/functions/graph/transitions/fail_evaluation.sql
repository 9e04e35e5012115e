-- Ends an evaluation as Failed with a reason that people read. What it recorded stays; its
-- assignment, if one is open, is asked to stop.
-- Locks: the turn, the evaluation, its assignment. Returns: {status}. Idempotent.
-- Errors: GR002 no such evaluation.
-- Execute: server
create or replace function graph.fail_evaluation(p_evaluation bigint, p_message text, p_source text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_status gradient.evaluation_status;
begin
  perform graph.take_turn();
  select e.status into v_status from gradient.evaluation e where e.id = p_evaluation for no key update;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  if graph.is_active(v_status) then
    insert into gradient.evaluation_message (evaluation, level, message, source, created_at)
    values (p_evaluation, 'Error', p_message, p_source, gradient.current_time());
    perform graph.recount_evaluations(array[p_evaluation]);
    v_status := graph.move_evaluation(p_evaluation, 'Failed');
    perform graph.request_abort(array(
      select o.id from gradient.dispatched_job o where o.job = 'eval:' || p_evaluation and o.finished_at is null));
    -- What an unfinished walk recorded, and nothing wants, waits for no further batch.
    perform graph.settle_need(null, array(
      select j.derivation_build from gradient.build_job j where j.evaluation = p_evaluation));
  end if;
  return jsonb_build_object('status', v_status);
end
$fn$;

comment on function graph.fail_evaluation(bigint, text, text) is
  'Ends p_evaluation as Failed with the Error message p_message (source p_source) unless it ended already, and asks its worker to stop. Returns {status}. Error GR002.';
