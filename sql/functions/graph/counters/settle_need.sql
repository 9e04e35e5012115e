-- What follows from a change of need: what is wanted again thaws, what is wanted no more leaves the
-- queue and is skipped, unless an entry point names it.
-- Locks: under the turn; rows by derivation. Returns: shared builds whose status moved.
create or replace function graph.settle_need(p_gained bigint[], p_lost bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_gained bigint[] := p_gained;
  v_all bigint[] := coalesce(p_gained, '{}');
  v_level bigint[];
  v_thawed bigint[] := '{}';
  v_skipped bigint[];
  v_unqueued bigint[];
begin
  -- A thawed build is a builder again, and so wants its inputs; those may have to thaw in turn.
  loop
    with moved as (
      update gradient.derivation_build b
      set status = 'Created', attempt = 0, updated_at = gradient.current_time()
      where b.derivation = any (v_gained) and b.wanted and b.status in ('Skipped', 'Aborted')
      returning b.derivation
    )
    select coalesce(array_agg(m.derivation), '{}') into v_level from moved m;
    exit when cardinality(v_level) = 0;
    v_thawed := v_thawed || v_level;
    v_gained := graph.gain_need(v_level);
    v_all := v_all || v_gained;
  end loop;

  v_unqueued := graph.unpromote(p_lost);

  with moved as (
    update gradient.derivation_build b
    set status = 'Skipped', updated_at = gradient.current_time()
    where b.derivation = any (p_lost) and b.status = 'Created' and not b.wanted
      and not exists (select from gradient.entry_point p where p.derivation = b.derivation)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_skipped from moved m;

  return v_thawed || v_unqueued || v_skipped || graph.promote(v_all);
end
$fn$;

comment on function graph.settle_need(bigint[], bigint[]) is
  'After a change of need: p_gained thaws from Skipped or Aborted and is queued where it may start; p_lost leaves the queue and becomes Skipped unless an entry point names it. Returns the shared builds whose status moved.';
