-- Moves an evaluation to another status and stamps the phase that begins. A terminal evaluation
-- never moves.
-- Locks: the evaluation's row. Returns: the status that stands afterwards.
create or replace function graph.move_evaluation(
  p_evaluation bigint, p_status gradient.evaluation_status, p_worker text default null)
  returns gradient.evaluation_status
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_from gradient.evaluation_status;
begin
  select e.status into v_from from gradient.evaluation e where e.id = p_evaluation for no key update;
  if v_from = p_status or not graph.is_active(v_from) then
    return v_from;
  end if;
  update gradient.evaluation e
  set status = p_status,
      waiting_reason = null,
      updated_at = v_now,
      fetch_started_at = case when p_status = 'Fetching' then v_now else e.fetch_started_at end,
      eval_flake_started_at = case when p_status = 'EvaluatingFlake' then v_now else e.eval_flake_started_at end,
      eval_drv_started_at = case when p_status = 'EvaluatingDerivation' then v_now else e.eval_drv_started_at end,
      building_started_at = case when p_status = 'Building' then coalesce(e.building_started_at, v_now) else e.building_started_at end,
      finished_at = case when graph.is_active(p_status) then null else v_now end
  where e.id = p_evaluation;
  insert into gradient.phase_event (subject_kind, subject, phase, at, worker_id)
  values ('Evaluation', p_evaluation, p_status::text, v_now, p_worker);
  perform gradient.kick('evaluations');
  return p_status;
end
$fn$;

comment on function graph.move_evaluation(bigint, gradient.evaluation_status, text) is
  'Moves p_evaluation to p_status unless it is terminal, stamps the phase, records a phase event (by p_worker) and wakes the servers. Returns the status that stands.';
