-- Names what is wanted and no evaluation names but aborted ones, so that it is somebody's and can be
-- handed out: for the evaluations that name the nearest shared build above it, those in flight if
-- there are any, else the newest. Needed where a build lost its only name, or is wanted again after its namer is gone.
-- Locks: under the turn; rows by derivation. Returns: the shared builds that got a name.
create or replace function graph.adopt_unnamed(p_roots bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_unnamed bigint[];
  v_adopted bigint[];
begin
  with recursive below (id) as (
    select b.derivation
    from gradient.derivation_build b
    where b.derivation = any (p_roots) and b.wanted
    union
    select c.derivation
    from below r
    join gradient.derivation_dependency e on e.derivation = r.id
    join gradient.derivation_build c on c.derivation = e.dependency
    where c.wanted
  )
  select coalesce(array_agg(r.id), '{}') into v_unnamed
  from below r
  where not exists (
    select from gradient.build_job j
    join gradient.evaluation v on v.id = j.evaluation and v.status <> 'Aborted'
    where j.derivation_build = r.id);
  if cardinality(v_unnamed) = 0 then
    return '{}';
  end if;

  with recursive above (orphan, id) as (
    select u.id, u.id from unnest(v_unnamed) as u (id)
    union
    select a.orphan, p.derivation
    from above a
    join gradient.derivation_dependency e on e.dependency = a.id
    join gradient.derivation_build p on p.derivation = e.derivation and p.wanted
    where not exists (
      select from gradient.build_job j
      join gradient.evaluation v on v.id = j.evaluation and v.status <> 'Aborted'
      where j.derivation_build = a.id)
  ), namer as (
    select distinct a.orphan, v.id as evaluation, graph.is_active(v.status) as active
    from above a
    join gradient.build_job j on j.derivation_build = a.id
    join gradient.evaluation v on v.id = j.evaluation and v.status <> 'Aborted'
  ), named as (
    insert into gradient.build_job (evaluation, derivation_build, created_at)
    select c.evaluation, c.orphan, gradient.current_time()
    from (
      select n.orphan, n.evaluation from namer n where n.active
      union
      select n.orphan, max(n.evaluation) from namer n group by n.orphan having not bool_or(n.active)
    ) as c
    order by 1, 2
    on conflict (evaluation, derivation_build) do nothing
    returning derivation_build
  )
  select coalesce(array_agg(distinct n.derivation_build), '{}') into v_adopted from named n;
  perform graph.promote(v_adopted);
  perform graph.sync_ready(v_adopted);
  return v_adopted;
end
$fn$;

comment on function graph.adopt_unnamed(bigint[]) is
  'Names every wanted shared build at or below p_roots that no evaluation names but aborted ones, for the evaluations naming the nearest one above, and queues what may start. Returns those named.';
