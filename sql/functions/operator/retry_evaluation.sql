-- gradient.retry_evaluation(evaluation) -> what came back
-- A person tries everything again that failed in an evaluation, without evaluating anew.
-- A deadlock or serialization failure is tried again, in a sub-transaction, so that a call that is a
-- transaction of its own shows none to a person.
-- Locks: those of graph.retry_evaluation, the turn first.
-- Execute: operator, server

create function gradient.retry_evaluation(p_evaluation bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c_attempts constant integer := 5;
  v_report jsonb;
begin
  for v_attempt in 1..c_attempts loop
    begin
      v_report := graph.retry_evaluation(p_evaluation);
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

comment on function gradient.retry_evaluation(bigint) is
  'Reopens an evaluation that ended Failed or Aborted and tries its failed builds again, without a walk; returns {status, builds}. Raises GR001 with DETAIL EvaluationFinished, NewerEvaluation or WrongStatus; GR002. '
  'Called as a transaction of its own, it tries a deadlock again itself; inside a longer one, locks taken before can make that fail.';
