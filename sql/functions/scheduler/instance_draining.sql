-- scheduler.instance_draining(name)
-- The server is about to stop: from this commit on none of its workers is given a job.
-- Locks: the server_instance row.
-- Execute: server, operator

create function scheduler.instance_draining(p_name text)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  update gradient.server_instance i set draining = true where i.name = p_name;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no server instance %s.', p_name),
      hint = 'select name from gradient.server_instance;';
  end if;
  perform gradient.kick('waiting');
end
$$;

comment on function scheduler.instance_draining(text) is
  'Stops handing out jobs through a server until it starts again. Raises GR002 when there is no such server.';
