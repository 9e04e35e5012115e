-- What an evaluation built or found belongs into its project's caches: claims the runtime closure of
-- its entry points' outputs for every cache the project writes to. Otherwise a project whose walk
-- was pruned would own a cache full of holes. Claims are unsigned until first asked for.
-- Locks: the claims' rows. Returns: the number of claims made.
create or replace function graph.claim_closures(p_evaluations bigint[])
  returns bigint
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_claimed bigint;
begin
  with recursive closure (evaluation, path) as (
    select p.evaluation, o.cached_path
    from gradient.entry_point p
    join graph.complete_closure((
      select array_agg(distinct k.derivation) from gradient.entry_point k where k.evaluation = any (p_evaluations))) c
      on c.derivation = p.derivation
    join gradient.derivation_output o on o.derivation = p.derivation
    where p.evaluation = any (p_evaluations)
    union
    select c.evaluation, r.id
    from closure c
    join gradient.cached_path s on s.id = c.path
    cross join lateral unnest(s."references") as n (name)
    join gradient.cached_path r on r.hash = left(n.name, 32)
  ), claimed as (
    insert into gradient.cached_path_signature (cached_path, cache, created_at)
    select distinct c.path, p.cache, gradient.current_time()
    from closure c
    join gradient.evaluation e on e.id = c.evaluation
    join gradient.task t on t.id = e.task
    join gradient.project_cache p on p.project = t.project and p.mode <> 'ReadOnly'
    order by 1, 2
    on conflict (cached_path, cache) do nothing
    returning 1
  )
  select count(*) into v_claimed from claimed;
  return v_claimed;
end
$fn$;

comment on function graph.claim_closures(bigint[]) is
  'Claims, for the caches their projects write to, the runtime closure of every complete entry point of p_evaluations. Returns the number of new claims.';
