-- A worker could not fetch inputs of a build (reference D.7): they are demoted and made again, so
-- that the build can be tried again after them. A path that nothing produces cannot be made again;
-- then the outputs that refer to it are, below this build only. Never a referrer's .drv. What failed
-- of the producers thaws, unless its builder said no.
-- p_paths: store paths. A path that is no output in the closure of p_build is none of its business.
-- Locks: the turn; then as graph.retire_outputs. Returns: the store hashes demoted.
-- Execute: server
create or replace function graph.repair_missing_inputs(p_build bigint, p_paths text[])
  returns text[]
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_closure bigint[];
  v_hashes text[];
  v_below bigint[];
  v_thawed bigint[];
begin
  perform graph.take_turn();
  with recursive closure (id) as (
    select e.dependency from gradient.derivation_dependency e where e.derivation = p_build
    union
    select e.dependency from closure c join gradient.derivation_dependency e on e.derivation = c.id
  )
  select coalesce(array_agg(c.id), '{}') into v_closure from closure c where c.id <> p_build;

  with missing as (
    select distinct m.name
    from (select regexp_replace(p, '^/nix/store/', '') from unnest(p_paths) as p) as m (name)
    where graph.is_store_name(m.name)
  )
  select coalesce(array_agg(distinct h.hash), '{}') into v_hashes
  from (
    select o.hash
    from missing m
    join gradient.derivation_output o on o.hash = left(m.name, 32)
    where o.derivation = any (v_closure)
    union
    select o.hash
    from missing m
    join gradient.cached_path c on c."references" @> array[m.name]
    join gradient.derivation_output o on o.cached_path = c.id
    where o.derivation = any (v_closure)
      and not exists (select from gradient.derivation_output p where p.hash = left(m.name, 32))
  ) as h;
  perform graph.demote('path', h.hash) from unnest(v_hashes) as h (hash);

  with recursive failed (id) as (
    select o.derivation
    from gradient.derivation_output o
    join gradient.derivation_build b on b.derivation = o.derivation
    where o.hash = any (v_hashes)
      and b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
    union
    select b.derivation
    from failed f
    join gradient.derivation_dependency e on e.derivation = f.id
    join gradient.derivation_build b on b.derivation = e.dependency
    where b.status in ('FailedPermanent', 'Aborted', 'DependencyFailed', 'FailedTimeout')
  )
  select coalesce(array_agg(f.id), '{}') into v_below from failed f;
  v_thawed := graph.requeue_failed_closure(null, v_below, 'unstick');
  if cardinality(v_thawed) > 0 then
    perform graph.after_status_move(v_thawed, null);
    perform graph.fail_blocked(v_thawed);
    perform graph.adopt_unnamed(v_thawed);
  end if;
  return v_hashes;
end
$fn$;

comment on function graph.repair_missing_inputs(bigint, text[]) is
  'Has the inputs p_paths (store paths) of shared build p_build made again that its worker could not fetch. Returns the store hashes demoted.';
