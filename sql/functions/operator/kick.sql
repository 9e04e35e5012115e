-- Wakes the servers: one constant short topic, so that repeats within a transaction collapse.
-- Locks: none. A lost kick costs one tick, never correctness.
-- Execute: server, operator
create or replace function gradient.kick(p_topic text)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  if p_topic not in ('builds', 'evaluations', 'waiting', 'probes', 'deliveries', 'aborts') then
    raise exception using errcode = 'GR005',
      message = format('"%s" is no topic.', p_topic),
      hint = 'Topics: builds, evaluations, waiting, probes, deliveries, aborts.';
  end if;
  perform pg_notify('gradient', p_topic);
end
$fn$;

comment on function gradient.kick(text) is
  'Wakes the servers for a topic (builds, evaluations, waiting, probes, deliveries, aborts) when this transaction commits. Error GR005: no such topic.';
