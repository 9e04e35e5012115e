-- Ends an evaluation because somebody says so, with the builds that only it needs. Builds that
-- another evaluation in flight names go on. Nothing is a failure here, nothing cascades.
-- Locks: the turn; the evaluation; shared builds by derivation; assignments by id.
-- Returns: {status, aborted_builds}. Idempotent. Errors: GR002 no such evaluation.
-- Execute: server
create or replace function graph.abort_evaluation(p_evaluation bigint, p_reason text)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_status gradient.evaluation_status;
  v_aborted bigint[];
begin
  perform graph.take_turn();
  select e.status into v_status from gradient.evaluation e where e.id = p_evaluation for no key update;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  if not graph.is_active(v_status) then
    return jsonb_build_object('status', v_status, 'aborted_builds', 0);
  end if;

  insert into gradient.evaluation_message (evaluation, level, message, source, created_at)
  values (p_evaluation, 'Notice', p_reason, 'scheduler', gradient.current_time());
  v_aborted := array(
    select b.derivation
    from gradient.build_job j
    join gradient.derivation_build b on b.derivation = j.derivation_build
    where j.evaluation = p_evaluation and b.status in ('Created', 'Queued', 'Building')
      and not exists (
        select
        from gradient.build_job other
        join gradient.evaluation e on e.id = other.evaluation and graph.is_active(e.status)
        where other.derivation_build = b.derivation and other.evaluation <> p_evaluation)
    order by b.derivation);
  perform graph.lock_shared_builds(null, v_aborted);
  perform from gradient.derivation_build b where b.derivation = any (v_aborted) order by b.derivation for no key update;
  update gradient.derivation_build b
  set status = 'Aborted', prioritized = false, updated_at = gradient.current_time()
  where b.derivation = any (v_aborted);
  insert into gradient.phase_event (subject_kind, subject, phase, at)
  select 'Build', u.id, 'Aborted', gradient.current_time() from unnest(v_aborted) as u (id);

  perform graph.request_abort(array(
    select o.id from gradient.dispatched_job o
    where o.finished_at is null
      and (o.job = 'eval:' || p_evaluation
           or o.job in (select 'build:' || u.id from unnest(v_aborted) as u (id)))));
  perform graph.recount_evaluations(array[p_evaluation]);
  v_status := graph.move_evaluation(p_evaluation, 'Aborted');
  perform graph.sync_ready(array(
    select r.derivation_build from gradient.ready_build r
    join gradient.build_job j on j.derivation_build = r.derivation_build and j.evaluation = p_evaluation));
  perform graph.after_status_move(
    v_aborted || array(select p.derivation from gradient.entry_point p where p.evaluation = p_evaluation), null);
  return jsonb_build_object('status', v_status, 'aborted_builds', cardinality(v_aborted));
end
$fn$;

comment on function graph.abort_evaluation(bigint, text) is
  'Ends p_evaluation as Aborted with p_reason and aborts the shared builds that no other evaluation in flight names. Returns {status, aborted_builds}. Error GR002.';
