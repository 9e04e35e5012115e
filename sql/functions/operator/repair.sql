-- gradient.repair(evaluation, scope) -> (step, touched)
-- A person heals what an evaluation waits for; the five steps report what each touched.
-- A deadlock or serialization failure is tried again, in a sub-transaction, so that a call that is a
-- transaction of its own shows none to a person.
-- Locks: those of graph.repair_build_graph, the turn first.
-- Execute: operator, server

create function gradient.repair(p_evaluation bigint, p_scope text default 'unstick')
  returns table (step text, touched bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c_attempts constant integer := 5;
begin
  for v_attempt in 1..c_attempts loop
    begin
      return query select r.step, r.touched from graph.repair_build_graph(p_evaluation, p_scope) as r;
      return;
    exception when deadlock_detected or serialization_failure then
      if v_attempt = c_attempts then
        raise;
      end if;
    end;
  end loop;
end
$$;

comment on function gradient.repair(bigint, text) is
  'Runs the repair pass below an evaluation; one row a step. p_scope: unstick (frees what is stuck, leaves what a builder itself failed alone), eval (as when a walk has ended) or retry (everything failed is tried again). Raises GR002, GR005. '
  'Called as a transaction of its own, it tries a deadlock again itself; inside a longer one, locks taken before can make that fail.';
