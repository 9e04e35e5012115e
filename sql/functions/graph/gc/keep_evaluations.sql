-- Deletes what a task keeps no longer: its ended evaluations beyond keep_evaluations, oldest first,
-- at most setting gc.evaluation_batch at a time. While an evaluation of the task is in flight nothing is deleted, as its
-- walk builds on what the last ones named; but for one that has not moved for
-- setting gc.wedged_evaluation.
-- Locks: as graph.gc_evaluations. Returns: as graph.gc_evaluations. Errors: GR002 no such task.
-- Execute: server, operator
create or replace function graph.keep_evaluations(p_task bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_keep integer;
begin
  perform graph.take_turn();
  select t.keep_evaluations into v_keep from gradient.task t where t.id = p_task;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no task %s.', p_task),
      hint = 'select id, project, name from gradient.task_overview;';
  end if;
  if exists (
    select from gradient.evaluation e
    where e.task = p_task and graph.is_active(e.status)
      and e.updated_at > gradient.current_time() - make_interval(secs => gradient.setting_int('gc.wedged_evaluation'))) then
    return '{"evaluations": [], "adopted": 0}';
  end if;
  return graph.gc_evaluations(array(
    select o.id
    from (
      select e.id, row_number() over (order by e.id desc) as n
      from gradient.evaluation e
      where e.task = p_task and not graph.is_active(e.status)
    ) as o
    where o.n > v_keep
    order by o.id
    limit gradient.setting_int('gc.evaluation_batch')));
end
$fn$;

comment on function graph.keep_evaluations(bigint) is
  'Deletes the ended evaluations of p_task beyond its keep_evaluations, oldest first, unless one is in flight that moved within setting gc.wedged_evaluation (seconds). Returns {evaluations, adopted}. Error GR002.';
