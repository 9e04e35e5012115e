-- gradient.abort_evaluation(evaluation) -> what was aborted
-- A person stops an evaluation. Builds that no other evaluation in flight needs are aborted with it
-- and stopped on their workers; the others go on.
-- Locks: those of graph.abort_evaluation, the turn first.
-- Execute: operator, server

create function gradient.abort_evaluation(p_evaluation bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_status gradient.evaluation_status;
begin
  perform graph.take_turn();
  select e.status into v_status from gradient.evaluation e where e.id = p_evaluation;
  if v_status is null then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, project, task, status from gradient.evaluation_overview order by id desc limit 20;';
  end if;
  if not graph.is_active(v_status) then
    raise exception using errcode = 'GR001',
      message = format('Evaluation %s has ended; there is nothing to abort.', p_evaluation),
      detail = format('It is %s.', v_status);
  end if;
  return graph.abort_evaluation(p_evaluation, 'Aborted by a user.');
end
$$;

comment on function gradient.abort_evaluation(bigint) is
  'Aborts an evaluation in flight and the builds that only it needs; returns {aborted_builds}. Raises GR001 when it has ended, GR002 when there is none.';
