-- scheduler.authenticate_worker(worker, tokens) -> one row: welcome or not, and what it may do
-- A worker is either one worker of a team, serving every project that grants the team's workers,
-- or a set of registrations, serving the projects whose token it holds. What it may do is the AND
-- over the rows that let it in. An empty set of projects means nothing, never everything.
-- Locks: none. Reads tokens as SHA-256.
-- Returns: accepted; else code and reason as the wire's Reject has them (401 no valid token,
-- 403 unknown, deactivated or granted by no project, 495 no project with a cache).
-- Execute: server

create function scheduler.authenticate_worker(p_worker text, p_tokens text[])
  returns table (
    accepted boolean,
    code integer,
    reason text,
    projects bigint[],
    project_names text[],
    can_fetch boolean,
    can_eval boolean,
    can_build boolean)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_known boolean;
  v_valid boolean;
  v_active boolean;
  v_granted boolean;
begin
  with account as (
    select r.token_hash, r.active, r.enable_fetch, r.enable_eval, r.enable_build,
           array[r.project] as projects
    from gradient.worker_registration r
    where r.worker_id = p_worker
    union all
    select w.token_hash, w.enabled, w.enable_fetch, w.enable_eval, w.enable_build,
           array(select g.project from gradient.team_project g where g.team = w.team and g.workers)
    from gradient.team_worker w
    where w.worker_id = p_worker
  ), verified as (
    select a.*, a.token_hash = any(array(
      select scheduler.token_hash(t.token) from unnest(p_tokens) as t(token))) as valid
    from account a
  ), serving as (
    select v.enable_fetch, v.enable_eval, v.enable_build, p.project
    from verified v
    cross join unnest(v.projects) as p(project)
    where v.valid and v.active
  )
  select
    exists (select from verified),
    exists (select from verified v where v.valid),
    exists (select from verified v where v.valid and v.active),
    exists (select from serving),
    (select array_agg(distinct s.project order by s.project)
     from serving s join scheduler.served_project c on c.project = s.project),
    (select bool_and(s.enable_fetch) from serving s),
    (select bool_and(s.enable_eval) from serving s),
    (select bool_and(s.enable_build) from serving s)
  into v_known, v_valid, v_active, v_granted, projects, can_fetch, can_eval, can_build;

  accepted := projects is not null;
  if not v_known then
    code := 403;
    reason := format('Worker %s is not registered.', p_worker);
  elsif not v_valid then
    code := 401;
    reason := format('None of the tokens is valid for worker %s.', p_worker);
  elsif not v_active then
    code := 403;
    reason := format('Worker %s is deactivated.', p_worker);
  elsif not v_granted then
    code := 403;
    reason := format('No project grants the workers of the team of worker %s.', p_worker);
  elsif not accepted then
    code := 495;
    reason := format('No project of worker %s has a cache that it may write to.', p_worker);
  end if;

  project_names := array(
    select p.name
    from unnest(projects) with ordinality as s(project, place)
    join gradient.project p on p.id = s.project
    order by s.place);
  projects := coalesce(projects, '{}');
  can_fetch := coalesce(can_fetch, false) and accepted;
  can_eval := coalesce(can_eval, false) and accepted;
  can_build := coalesce(can_build, false) and accepted;
  return next;
end
$$;

comment on function scheduler.authenticate_worker(text, text[]) is
  'Whether a worker with these tokens is welcome: one row. accepted with the projects it serves (ids and names in the same order) and what it may do; '
  'otherwise code 401, 403 or 495 and a reason for people, with no projects.';
