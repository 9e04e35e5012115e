-- scheduler.instance_seen(name)
-- The server is alive; called about every 10 s. The table is unlogged.
-- Locks: the instance_seen row.
-- Execute: server

create function scheduler.instance_seen(p_name text)
  returns void
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  insert into gradient.instance_seen (instance, last_seen)
  values (p_name, gradient.current_time())
  on conflict (instance) do update set last_seen = excluded.last_seen
$$;

comment on function scheduler.instance_seen(text) is
  'Renews a server''s sign of life; see the setting instance_grace.';
