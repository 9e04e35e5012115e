-- gradient.prioritize_build(build) -> how many builds go first
-- A person lets a build go first, with what it waits for. Named as for gradient.find_build.
-- A deadlock or serialization failure is tried again, in a sub-transaction, so that a call that is a
-- transaction of its own shows none to a person.
-- Locks: those of graph.prioritize_build, the turn first.
-- Execute: operator, server

create function gradient.prioritize_build(p_build text)
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
      v_report := graph.prioritize_build(gradient.find_build(p_build));
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

comment on function gradient.prioritize_build(text) is
  'Puts a build, and what it waits for, before what is not prioritized; returns {builds}. p_build: an id, .drv, output path or hash, as gradient.find_build takes it. Raises GR001 with DETAIL WrongStatus; GR002, GR005 as gradient.find_build. '
  'Called as a transaction of its own, it tries a deadlock again itself; inside a longer one, locks taken before can make that fail.';
