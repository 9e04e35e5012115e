-- scheduler.worker_capabilities(worker, connection, capabilities)
-- Replaces what the worker said it can build and how much at once; running jobs are unaffected.
-- Locks: the worker_connection row. Kicks: builds, evaluations, waiting.
-- Execute: server

create function scheduler.worker_capabilities(
  p_worker text,
  p_connection bigint,
  p_capabilities jsonb)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(p_capabilities -> 'architectures') is distinct from 'array'
    or jsonb_typeof(p_capabilities -> 'system_features') is distinct from 'array'
    or exists (
      select from unnest(array['build_slots', 'eval_slots', 'cpu_count', 'ram_total_mb']) as n(name)
      where case coalesce(jsonb_typeof(p_capabilities -> n.name), 'null')
        when 'number' then p_capabilities ->> n.name !~ '^[0-9]{1,9}$'
        when 'null' then n.name in ('build_slots', 'eval_slots')
        else true end)
  then
    raise exception using errcode = 'GR005',
      message = format('The capabilities of worker %s are not well-formed.', p_worker),
      detail = format('Found %s.', coalesce(left(p_capabilities::text, 1000), 'null')),
      hint = 'architectures and system_features are lists; build_slots and eval_slots are whole numbers, as cpu_count and ram_total_mb are where they are given, of at most nine digits.';
  end if;

  update gradient.worker_connection w
  set architectures = c.architectures,
      system_features = c.system_features,
      build_slots = c.build_slots,
      eval_slots = c.eval_slots,
      cpu_count = c.cpu_count,
      ram_total_mb = c.ram_total_mb,
      zone = c.zone,
      endpoint = c.endpoint
  from jsonb_to_record(p_capabilities) as c(
    architectures text[], system_features text[], build_slots integer, eval_slots integer,
    cpu_count integer, ram_total_mb bigint, zone text, endpoint text)
  where w.worker_id = p_worker
    and w.connection = p_connection
    and w.disconnected_at is null;
  if not found then
    raise exception using errcode = 'GR003',
      message = format('Connection %s of worker %s was replaced or closed.', p_connection, p_worker);
  end if;

  perform gradient.kick('builds');
  perform gradient.kick('evaluations');
  perform gradient.kick('waiting');
end
$$;

comment on function scheduler.worker_capabilities(text, bigint, jsonb) is
  'Replaces the capabilities of a connected worker by those of the wire''s WorkerCapabilities. Raises GR005 when a field is missing or malformed, GR003 when the connection is not the worker''s any more.';
