-- scheduler.lost_assignments(instance) -> assignment
-- Open assignments whose worker is gone: its session ended and nothing was heard of it for the
-- setting worker_grace, or it never had a session. The worker counts where it was last connected.
-- Locks: none.

create function scheduler.lost_assignments(p_instance text)
  returns table (assignment bigint)
  language sql stable
  set search_path = pg_catalog, pg_temp
as $$
  select d.id
  from gradient.dispatched_job d
  left join gradient.worker_connection w on w.worker_id = d.worker_id
  left join gradient.worker_seen s on s.worker_id = d.worker_id
  cross join (
    select gradient.current_time() - gradient.setting_int('worker_grace') * interval '1 second' as since
  ) silent
  where d.finished_at is null
    and (p_instance is null or coalesce(w.instance, d.instance) = p_instance)
    and (w.worker_id is null
         or (w.disconnected_at is not null
             and greatest(w.connected_at, coalesce(s.last_seen, w.disconnected_at)) <= silent.since))
  order by d.id
$$;

comment on function scheduler.lost_assignments(text) is
  'Open assignments of workers that were last connected to a server (null: any), left it, and were not heard for worker_grace seconds.';
