-- Brings ready_build to its truth for the given shared builds, in the transaction that moved them.
-- A row that appears, appears again or changes its class gets a new offer generation, so that every
-- worker that may run it is offered it.
-- Locks: the queued ones of the shared builds, by derivation, since a claim that is under way holds
-- them: whether they are handed out is read after the wait. Then the ready rows.
-- Returns: nothing. Kicks builds when something became ready, and when queued builds were locked: a
-- worker that asked meanwhile was given none of them.
create or replace function graph.sync_ready(p_ids bigint[])
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_locked boolean;
begin
  if cardinality(p_ids) is null or cardinality(p_ids) = 0 then
    return;
  end if;
  perform from gradient.derivation_build b
  where b.derivation = any (p_ids) and b.status = 'Queued'
  order by b.derivation for no key update;
  v_locked := found;

  delete from gradient.ready_build r
  where r.derivation_build = any (p_ids)
    and (r.derivation_build, r.project) not in (
      select t.derivation_build, t.project from graph.ready_rows(p_ids) t);

  insert into gradient.build_class (architecture, required_features)
  select distinct t.architecture, t.required_features
  from graph.ready_rows(p_ids) t
  where not exists (
    select from gradient.build_class c
    where c.architecture = t.architecture and c.required_features = t.required_features)
  order by 1, 2
  on conflict do nothing;

  insert into gradient.ready_build as r (derivation_build, project, class, priority, queued_at, offer_generation)
  select t.derivation_build, t.project, c.id, t.priority, t.queued_at, nextval('gradient.offer_generation')
  from graph.ready_rows(p_ids) t
  join gradient.build_class c on c.architecture = t.architecture and c.required_features = t.required_features
  on conflict (derivation_build, project) do update
  set class = excluded.class,
      priority = excluded.priority,
      offer_generation = case
        when r.class = excluded.class then r.offer_generation else excluded.offer_generation end
  where (r.class, r.priority) is distinct from (excluded.class, excluded.priority);
  if found or v_locked then
    perform gradient.kick('builds');
  end if;
end
$fn$;

comment on function graph.sync_ready(bigint[]) is
  'Makes gradient.ready_build hold exactly what it must for p_ids, and wakes the servers when something became ready.';
