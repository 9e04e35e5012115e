-- gradient.abort_evaluation(evaluation) -> what was aborted
-- A person stops an evaluation. Builds that no other evaluation in flight needs are aborted with it
-- and stopped on their workers; the others go on.
-- A deadlock or serialization failure is tried again, in a sub-transaction, so that a call that is a
-- transaction of its own shows none to a person.
-- Locks: those of graph.abort_evaluation, the turn first.
-- Execute: operator, server

create function gradient.abort_evaluation(p_evaluation bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c_attempts constant integer := 5;
  v_status gradient.evaluation_status;
  v_report jsonb;
begin
  for v_attempt in 1..c_attempts loop
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
          detail = format('EvaluationFinished: it is %s.', v_status);
      end if;
      v_report := graph.abort_evaluation(p_evaluation, 'Aborted by a user.');
      exit;
    exception when deadlock_detected or serialization_failure then
      if v_attempt = c_attempts then
        raise;
      end if;
    end;
  end loop;
  return v_report;
end
$$;

comment on function gradient.abort_evaluation(bigint) is
  'Aborts an evaluation in flight and the builds that only it needs; returns {aborted_builds}. Raises GR001 when it has ended, GR002 when there is none. '
  'Called as a transaction of its own, it tries a deadlock again itself; inside a longer one, locks taken before can make that fail.';
