-- gradient.subscribe_cache(project, cache, mode)
-- A project reads from a cache, writes its results into it, or both. With its first cache to write
-- to a project is served by workers, and evaluations that waited for one are queued.
-- Locks: the subscription's row, worker_connection rows by worker, evaluation rows by id. Kicks: evaluations, builds, waiting.
-- Execute: operator, server

create function gradient.subscribe_cache(
  p_project text,
  p_cache text,
  p_mode text default 'ReadWrite')
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_project constant bigint := gradient.project_id(p_project);
  v_cache constant bigint := gradient.cache_id(p_cache);
  v_waiting bigint[];
begin
  if p_mode is null or p_mode not in ('ReadWrite', 'ReadOnly', 'WriteOnly') then
    raise exception using errcode = 'GR005',
      message = format('There is no subscription mode %L.', p_mode),
      hint = 'Use ReadWrite, ReadOnly or WriteOnly.';
  end if;

  insert into gradient.project_cache (project, cache, mode)
  values (v_project, v_cache, p_mode::gradient.subscription_mode)
  on conflict (project, cache) do update set mode = excluded.mode;

  perform scheduler.refresh_team_projects();

  if exists (select from scheduler.served_project s where s.project = v_project) then
    v_waiting := array(
      select e.id
      from gradient.evaluation e
      join gradient.task t on t.id = e.task
      where t.project = v_project
        and e.status = 'Waiting'
        and e.waiting_reason ->> 'kind' = 'no_cache'
      order by e.id
      for no key update of e);
    update gradient.evaluation e
    set status = 'Queued', waiting_reason = null, updated_at = gradient.current_time()
    where e.id = any(v_waiting);
    insert into gradient.phase_event (subject_kind, subject, phase, at)
    select 'Evaluation', w.id, 'Queued', gradient.current_time()
    from unnest(v_waiting) as w(id);
  end if;
  perform gradient.kick('evaluations');
  perform gradient.kick('builds');
  perform gradient.kick('waiting');
end
$$;

comment on function gradient.subscribe_cache(text, text, text) is
  'Subscribes a project to a cache, or changes how: p_mode is ReadWrite, ReadOnly or WriteOnly. Connected workers of teams serve the project at once, its own workers from their next connection on. Raises GR002 for an unknown project or cache, GR005 for an unknown mode.';
