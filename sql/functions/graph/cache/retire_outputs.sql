-- Takes paths out of the cache that can no longer be fetched, and with them everything that rested
-- on them. Producers of these very paths that had ended well are to be built again; what refers to
-- them keeps its status and loses only its complete closure. A retired .drv un-walks its owner: it
-- is no longer known, nor is anything above it, though it stays marked walked, which is how a lost
-- .drv is found. A retired source un-walks for good what is built from it: only a walk uploads it
-- again. A running build is left alone. The stored objects are left to graph.collect_objects.
-- Locks: the turn; derivation rows by id; keys of the producers exclusive; cached_path by hash;
-- shared builds by derivation.
-- Returns: the rows of cached_path deleted, all producers of p_hashes, and those set back to Created.
-- Idempotent.
-- Execute: server, operator
create or replace function graph.retire_outputs(
  p_hashes text[], out paths bigint[], out producers bigint[], out reset bigint[])
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_hashes text[];
  v_complete bigint[];
  v_incomplete bigint[];
  v_flipped bigint[];
  v_owners bigint[];
  v_recorded bigint[];
  v_users bigint[];
  v_moved bigint[];
begin
  perform graph.take_turn();
  producers := array(
    select distinct o.derivation from gradient.derivation_output o where o.hash = any (p_hashes) order by 1);
  if not graph.turn_held() then
    perform from gradient.derivation d
    where d.hash = any (p_hashes)
      or d.id in (select i.derivation from gradient.derivation_input_source i where i.hash = any (p_hashes))
    order by d.id for no key update;
    perform graph.lock_shared_builds(null, producers);
  end if;
  perform from gradient.cached_path c where c.hash = any (p_hashes) order by c.hash for update;
  perform from gradient.derivation_build b where b.derivation = any (producers) order by b.derivation for no key update;
  v_complete := array(select c.derivation from graph.complete_closure(producers) c);

  with gone as (
    delete from gradient.cached_path c where c.hash = any (p_hashes) returning c.id, c.hash
  )
  select coalesce(array_agg(g.id), '{}'), coalesce(array_agg(g.hash), '{}') into paths, v_hashes from gone g;

  -- Completeness, from what was complete and is not any more, and then the marks that rest on it.
  v_incomplete := array(
    select unnest(v_complete) except select c.derivation from graph.complete_closure(v_complete) c);
  select r.all_lost into v_incomplete from graph.ripple_complete(null, v_incomplete) as r;
  select f.flipped into v_flipped from graph.lost_fetchability(v_incomplete) as f;

  with owned as (
    update gradient.derivation d
    set drv_present = false
    where d.hash = any (v_hashes) and d.drv_present
    returning d.id, graph.recorded(d.walked, true, d.unwalked_inputs) as recorded
  )
  select coalesce(array_agg(o.id), '{}'), coalesce(array_agg(o.id) filter (where o.recorded), '{}')
  into v_owners, v_recorded
  from owned o;
  perform graph.ripple_recorded(null, v_recorded);

  perform set_config('gradient.counters_only', 'on', true);
  with moved as (
    update gradient.derivation_build b
    set missing_sources = b.missing_sources + s.gone
    from (
      select i.derivation, count(*) as gone
      from gradient.derivation_input_source i
      where i.hash = any (v_hashes)
      group by i.derivation
      order by i.derivation
    ) as s
    where b.derivation = s.derivation
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_users from moved m;
  perform set_config('gradient.counters_only', 'off', true);
  perform graph.unwalk(v_users);

  with moved as (
    update gradient.derivation_build b
    set status = 'Created', substituted = false, attempt = 0, retry_at = null, updated_at = v_now
    where b.derivation = any (producers) and graph.succeeded(b.status)
      and b.derivation in (select o.derivation from gradient.derivation_output o where o.hash = any (v_hashes))
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into reset from moved m;
  perform graph.seed_blocking_deps(reset);
  insert into gradient.phase_event (subject_kind, subject, phase, at, detail)
  select 'Build', u.id, 'Created', v_now, jsonb_build_object('retired', true) from unnest(reset) as u (id);

  v_moved := producers || v_flipped || v_owners || v_users;
  perform graph.after_status_move(v_moved, null);
  perform graph.fail_blocked(producers);
  perform graph.adopt_unnamed(v_moved);
end
$fn$;

comment on function graph.retire_outputs(text[]) is
  'Deletes the cached paths with the store hashes p_hashes and everything that follows: closures, fetchability, queued builds, known subtrees. Returns the deleted rows (paths), all producers of p_hashes, and the producers set back to Created (reset).';
