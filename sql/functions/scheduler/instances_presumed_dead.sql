-- scheduler.instances_presumed_dead() -> names
-- Servers that left work behind, whose lock nobody holds and that gave no sign of life for
-- instance_grace. Whoever recovers one takes its lock (644, key) first, so that two never do.
-- Locks: none; reads the lock table.
-- Execute: server, operator

create function scheduler.instances_presumed_dead()
  returns setof text
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select i.name
  from gradient.server_instance i
  left join gradient.instance_seen s on s.instance = i.name
  where greatest(i.started_at, s.last_seen)
        <= gradient.current_time() - gradient.setting_int('instance_grace') * interval '1 second'
    and (exists (
           select from gradient.dispatched_job d
           where d.instance = i.name and d.finished_at is null)
         or exists (
           select from gradient.worker_connection w
           where w.instance = i.name and w.disconnected_at is null))
    and not exists (
      select from pg_locks l
      where l.locktype = 'advisory'
        and l.classid = 644
        and l.objid = i.lock_key::oid
        and l.objsubid = 2
        and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database()))
  order by i.name
$$;

comment on function scheduler.instances_presumed_dead() is
  'Servers with open assignments or open connections whose advisory lock (644, lock_key) is free and that were not seen for the setting instance_grace (seconds).';
