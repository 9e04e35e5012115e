-- gradient.create_task(project, name, repository, wildcard, options) -> id
-- A new task: a flake to evaluate, and which of its attributes.
-- Locks: none beyond its rows.
-- Execute: operator, server

create function gradient.create_task(
  p_project text,
  p_name text,
  p_repository text,
  p_wildcard text default 'packages.x86_64-linux.*',
  p_options jsonb default '{}')
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c_known constant text[] := array[
    'allow_import_from_derivation', 'concurrency', 'display_name', 'eval_memory_mb',
    'eval_timeout_secs', 'input_overrides', 'keep_evaluations', 'retry_failed_builds', 'revision',
    'wait_for_workers'];
  v_project constant bigint := gradient.project_id(p_project);
  v_unknown text;
  v_task bigint;
begin
  perform gradient.check_name('task', p_name);
  if p_repository is null or p_repository !~ '^[^-[:space:]][^[:space:]]*$' then
    raise exception using errcode = 'GR005',
      message = format('%L is not the address of a repository.', p_repository),
      hint = 'Use the URL or the path of a git repository, or a store path.';
  end if;
  if p_wildcard is null or btrim(p_wildcard) = '' then
    raise exception using errcode = 'GR005',
      message = format('Task %s names no attributes to build.', p_name),
      hint = 'For example packages.x86_64-linux.*';
  end if;
  if jsonb_typeof(p_options) is distinct from 'object' then
    raise exception using errcode = 'GR005',
      message = format('The options of task %s are not a JSON object.', p_name);
  end if;

  select k.key into v_unknown
  from jsonb_object_keys(p_options) as k(key)
  where k.key <> all(c_known)
  order by k.key
  limit 1;
  if v_unknown is not null then
    raise exception using errcode = 'GR005',
      message = format('Tasks have no option %s.', v_unknown),
      hint = 'Known are ' || array_to_string(c_known, ', ') || '.';
  end if;
  select k.key into v_unknown
  from jsonb_each(p_options) as k(key, value)
  where jsonb_typeof(k.value) <> case
      when k.key in ('keep_evaluations', 'eval_timeout_secs', 'eval_memory_mb') then 'number'
      when k.key in ('wait_for_workers', 'retry_failed_builds', 'allow_import_from_derivation') then 'boolean'
      when k.key = 'input_overrides' then 'object'
      else 'string' end
    or (jsonb_typeof(k.value) = 'number' and k.value::text !~ '^[1-9][0-9]{0,8}$')
    or (k.key = 'concurrency' and k.value #>> '{}' not in ('HardAbort', 'SoftAbort', 'All', 'Skip'))
    or (k.key = 'revision' and k.value #>> '{}' !~ '^[^-[:space:]][^[:space:]]*$')
    or (k.key = 'input_overrides' and exists (
          select from jsonb_each(k.value) as o(name, url)
          where jsonb_typeof(o.url) not in ('string', 'null')))
  order by k.key
  limit 1;
  if v_unknown is not null then
    raise exception using errcode = 'GR005',
      message = format('The option %s of task %s cannot be %s.', v_unknown, p_name, p_options -> v_unknown),
      hint = 'Counts, seconds and MiB are positive whole numbers; concurrency is HardAbort, SoftAbort, All or Skip; input_overrides maps names to URLs or null.';
  end if;

  insert into gradient.task
    (project, name, display_name, repository, revision, wildcard, keep_evaluations, concurrency,
     wait_for_workers, retry_failed_builds, allow_import_from_derivation, eval_timeout_secs,
     eval_memory_mb, created_at)
  values
    (v_project, p_name, coalesce(p_options ->> 'display_name', p_name), p_repository,
     p_options ->> 'revision', p_wildcard,
     coalesce((p_options ->> 'keep_evaluations')::integer, 30),
     coalesce((p_options ->> 'concurrency')::gradient.concurrency_policy, 'SoftAbort'),
     coalesce((p_options ->> 'wait_for_workers')::boolean, false),
     coalesce((p_options ->> 'retry_failed_builds')::boolean, true),
     coalesce((p_options ->> 'allow_import_from_derivation')::boolean, false),
     coalesce((p_options ->> 'eval_timeout_secs')::integer, 3600),
     coalesce((p_options ->> 'eval_memory_mb')::integer, 8192),
     gradient.current_time())
  on conflict (project, name) do nothing
  returning id into v_task;
  if v_task is null then
    raise exception using errcode = 'GR007',
      message = format('There is a task %s in project %s already.', p_name, p_project),
      hint = format('select * from gradient.task_overview where project = %L and name = %L;', p_project, p_name);
  end if;

  insert into gradient.task_flake_input_override (task, input_name, url)
  select v_task, o.name, o.url #>> '{}'
  from jsonb_each(p_options -> 'input_overrides') as o(name, url);
  return v_task;
end
$$;

comment on function gradient.create_task(text, text, text, text, jsonb) is
  'Makes a task and returns its id. p_repository: URL or path of a git repository, or a store path. p_wildcard: the attributes to build, comma-separated patterns. '
  'p_options: display_name, revision (commit, branch or tag), keep_evaluations, concurrency (HardAbort, SoftAbort, All, Skip), wait_for_workers, retry_failed_builds, allow_import_from_derivation, eval_timeout_secs, eval_memory_mb (MiB), input_overrides (object: input to URL). '
  'Raises GR002 for an unknown project, GR005 for malformed values or an unknown option, GR007 when the name is taken.';
