-- Lets one build go first, with everything below it that it still waits for.
-- Locks: the turn; shared builds by derivation; then as graph.sync_ready. Returns: {builds}: how many
-- are prioritized with it, itself included. Idempotent. Errors: GR001 WrongStatus; GR002.
-- Execute: server
create or replace function graph.prioritize_build(p_build bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_status gradient.build_status;
  v_closure bigint[];
begin
  perform graph.take_turn();
  select b.status into v_status from gradient.derivation_build b where b.derivation = p_build;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no build %s.', p_build),
      hint = 'gradient build list';
  end if;
  if v_status not in ('Created', 'Queued', 'FailedTransient') then
    raise exception using errcode = 'GR001',
      message = format('Build %s waits for no worker; there is nothing to hurry.', p_build),
      detail = format('WrongStatus: it is %s.', v_status),
      hint = format('gradient build show %s', p_build);
  end if;
  with recursive below (id) as (
    select p_build
    union
    select b.derivation
    from below d
    join gradient.derivation_dependency e on e.derivation = d.id
    join gradient.derivation_build b on b.derivation = e.dependency
    where b.wanted and b.status in ('Created', 'Queued', 'FailedTransient')
  )
  select array_agg(d.id order by d.id) into v_closure from below d;
  perform from gradient.derivation_build b where b.derivation = any (v_closure) order by b.derivation for no key update;
  update gradient.derivation_build b set prioritized = true
  where b.derivation = any (v_closure) and not b.prioritized;
  perform graph.sync_ready(v_closure);
  return jsonb_build_object('builds', cardinality(v_closure));
end
$fn$;

comment on function graph.prioritize_build(bigint) is
  'Puts shared build p_build, and what it waits for, before what is not prioritized. Returns {builds}. Errors GR001 (WrongStatus), GR002.';
