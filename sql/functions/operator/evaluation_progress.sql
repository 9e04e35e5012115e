-- gradient.evaluation_progress(evaluation) -> jsonb
-- Everything that watching an evaluation needs, in one call and one snapshot.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.evaluation_progress(p_evaluation bigint)
  returns jsonb
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_progress jsonb;
begin
  select jsonb_build_object(
    'evaluation', o.id,
    'project', o.project,
    'task', o.task,
    'status', o.status,
    'verdict', case when o.finished_at is not null then o.status end,
    'waiting_reason', o.waiting_reason,
    'commit', o.commit,
    'revision', o.revision,
    'wildcard', o.wildcard,
    'worker', o.worker,
    'created_at', o.created_at,
    'fetch_started_at', o.fetch_started_at,
    'eval_flake_started_at', o.eval_flake_started_at,
    'eval_drv_started_at', o.eval_drv_started_at,
    'building_started_at', o.building_started_at,
    'finished_at', o.finished_at,
    'builds', coalesce((
      select jsonb_object_agg(c.status, c.number)
      from (
        select b.status, count(*) as number
        from gradient.build_job j
        join gradient.derivation_build b on b.derivation = j.derivation_build
        where j.evaluation = o.id
        group by b.status
      ) c), '{}'),
    'building', coalesce((
      select jsonb_agg(
        jsonb_build_object('build', b.derivation, 'name', d.name, 'worker', a.worker_id,
                           'dispatched_at', a.dispatched_at, 'started_at', a.started_at)
        order by a.id)
      from gradient.dispatched_job a
      join gradient.build_job j
        on j.derivation_build = a.derivation_build and j.evaluation = o.id
      join gradient.derivation_build b on b.derivation = a.derivation_build
      join gradient.derivation d on d.id = b.derivation
      where a.finished_at is null and a.kind = 'Build'), '[]'),
    'entry_points', coalesce((
      select jsonb_agg(
        jsonb_build_object('attribute', n.attribute, 'build', d.id,
                           'drv', d.hash || '-' || d.name || '.drv', 'status', b.status)
        order by n.attribute)
      from gradient.entry_point n
      join gradient.derivation d on d.id = n.derivation
      left join gradient.derivation_build b on b.derivation = d.id
      where n.evaluation = o.id), '[]'),
    'messages', coalesce((
      select jsonb_agg(
        jsonb_build_object('level', lower(m.level::text), 'message', m.message, 'source', m.source,
                           'attribute', m.attribute, 'at', m.created_at)
        order by m.id)
      from gradient.evaluation_message m
      where m.evaluation = o.id), '[]'))
  into v_progress
  from gradient.evaluation_overview o
  where o.id = p_evaluation;

  if v_progress is null then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, project, task, status from gradient.evaluation_overview order by id desc limit 20;';
  end if;
  return v_progress;
end
$$;

comment on function gradient.evaluation_progress(bigint) is
  'The state of an evaluation as one object: status, verdict (null until it has ended), waiting_reason, builds (numbers by status), building (what runs now and where), entry_points, messages, and the times of its phases. Raises GR002 when there is none.';
