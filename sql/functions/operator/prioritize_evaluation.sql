-- gradient.prioritize_evaluation(evaluation) -> how many builds are ready
-- A person lets an evaluation go first.
-- A deadlock or serialization failure is tried again, in a sub-transaction, so that a call that is a
-- transaction of its own shows none to a person.
-- Locks: those of graph.prioritize_evaluation, the turn first.
-- Execute: operator, server

create function gradient.prioritize_evaluation(p_evaluation bigint)
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
      v_report := graph.prioritize_evaluation(p_evaluation);
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

comment on function gradient.prioritize_evaluation(bigint) is
  'Puts the builds of an evaluation in flight before what is not prioritized; returns {builds}, those ready now. Raises GR001 with DETAIL EvaluationFinished; GR002. '
  'Called as a transaction of its own, it tries a deadlock again itself; inside a longer one, locks taken before can make that fail.';
