-- gradient.retry_build(evaluation, build) -> what came back
-- A person tries one failed or aborted build of an evaluation again.
-- A deadlock or serialization failure is tried again, in a sub-transaction, so that a call that is a
-- transaction of its own shows none to a person.
-- Locks: those of graph.retry_build, the turn first.
-- Execute: operator, server

create function gradient.retry_build(p_evaluation bigint, p_build bigint)
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
      v_report := graph.retry_build(p_evaluation, p_build);
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

comment on function gradient.retry_build(bigint, bigint) is
  'Tries a failed or aborted build of an evaluation again, with what failed because of it, and reopens the evaluation when it has ended; returns {evaluation_status, reopened, builds}. Raises GR001 with DETAIL EvaluationFinished, NewerEvaluation, WrongStatus, WorkerStillStopping or NoFailedDependency; GR002. '
  'Called as a transaction of its own, it tries a deadlock again itself; inside a longer one, locks taken before can make that fail.';
