-- gradient.lock_worker_id(worker)
-- One registration of a worker id at a time: whether an id is a team's or a project's is looked up
-- in two tables, which no constraint spans.
-- Locks: advisory (646, hash of the id) until the transaction ends.
-- Execute: none

create function gradient.lock_worker_id(p_worker text)
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(646, hashtext(p_worker));
end
$$;

comment on function gradient.lock_worker_id(text) is
  'Keeps others from registering the same worker id until the transaction ends.';
