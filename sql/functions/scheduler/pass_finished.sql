-- scheduler.pass_finished(instance, pass, milliseconds, error, next)
-- Notes a run of one of a server's passes, for people. The table is unlogged.
-- Locks: the pass_run row.
-- Execute: server

create function scheduler.pass_finished(
  p_instance text,
  p_pass text,
  p_milliseconds double precision,
  p_error text default null,
  p_next double precision default null)
  returns void
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  insert into gradient.pass_run as r
    (instance, pass, last_started_at, last_finished_at, milliseconds, runs, errors, last_error, next_run_at)
  values
    (p_instance, p_pass,
     gradient.current_time() - p_milliseconds * interval '1 millisecond', gradient.current_time(),
     p_milliseconds, 1, (p_error is not null)::integer, p_error,
     gradient.current_time() + p_next * interval '1 second')
  on conflict (instance, pass) do update
  set last_started_at = excluded.last_started_at,
      last_finished_at = excluded.last_finished_at,
      milliseconds = excluded.milliseconds,
      runs = r.runs + 1,
      errors = r.errors + excluded.errors,
      last_error = coalesce(excluded.last_error, r.last_error),
      next_run_at = excluded.next_run_at
$$;

comment on function scheduler.pass_finished(text, text, double precision, text, double precision) is
  'Notes that a pass of a server ended: how long it took in milliseconds, its error if it failed (null: it did not), and in how many seconds it is due next.';
