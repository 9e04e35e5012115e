-- Failed for a passing reason, and the backoff has run out: back to Created, queued once it can start.
-- Locks: the turn; rows by derivation. Returns: how many came back.
-- Execute: server, operator
create or replace function graph.requeue()
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_due bigint[];
begin
  if not exists (
    select from gradient.derivation_build b
    where b.retry_at <= gradient.current_time() and b.status = 'FailedTransient') then
    return 0;
  end if;
  perform graph.take_turn();
  with due as (
    select b.derivation
    from gradient.derivation_build b
    where b.retry_at <= gradient.current_time() and b.status = 'FailedTransient'
    order by b.derivation
    for no key update
  ), moved as (
    update gradient.derivation_build b
    set status = 'Created', retry_at = null, updated_at = gradient.current_time()
    from due d
    where b.derivation = d.derivation
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_due from moved m;
  perform graph.settle_need(v_due, v_due);
  perform graph.promote(v_due);
  return cardinality(v_due);
end
$fn$;

comment on function graph.requeue() is
  'Takes FailedTransient shared builds whose backoff has run out back to Created, and queues those that may start. Returns how many.';
