-- A person tries one failed or aborted build of an evaluation again, with a fresh budget and also after
-- its builder's own failure. What failed because of it comes back, unless another failure still holds
-- it; a build that failed because of its inputs is tried by way of them. An evaluation that ended is
-- reopened.
-- Locks: the turn; the evaluation; shared builds by derivation; then as the repair.
-- Returns: {evaluation_status, reopened, builds}: how many builds came back.
-- Errors: GR001 EvaluationFinished, NewerEvaluation, WrongStatus, WorkerStillStopping,
-- NoFailedDependency; GR002.
-- Execute: server
create or replace function graph.retry_build(p_evaluation bigint, p_build bigint)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_build gradient.derivation_build;
  v_reopened boolean;
  v_closure bigint[];
  v_roots bigint[];
  v_stopping bigint;
  v_thawed bigint[];
  v_failed bigint[];
  v_adopted bigint[];
  v_promoted bigint[];
  v_need record;
begin
  perform graph.take_turn();
  v_build := graph.named_build(p_evaluation, p_build);
  v_reopened := graph.reopen_evaluation(p_evaluation);
  if v_build.status not in ('FailedPermanent', 'FailedTimeout', 'Aborted', 'DependencyFailed') then
    raise exception using errcode = 'GR001',
      message = format('Build %s is not one that can be tried again.', p_build),
      detail = format('WrongStatus: it is %s.', v_build.status),
      hint = format('gradient build show %s', p_build);
  end if;

  with recursive below (id) as (
    select p_build
    union
    select b.derivation
    from below d
    join gradient.derivation_build p on p.derivation = d.id and p.status = 'DependencyFailed'
    join gradient.derivation_dependency e on e.derivation = d.id
    join gradient.derivation_build b on b.derivation = e.dependency
    where b.status in ('FailedPermanent', 'FailedTimeout', 'Aborted', 'DependencyFailed')
  )
  select coalesce(array_agg(b.derivation order by b.derivation)
      filter (where b.status <> 'DependencyFailed'), '{}')
  into v_roots
  from below d join gradient.derivation_build b on b.derivation = d.id;
  if cardinality(v_roots) = 0 then
    raise exception using errcode = 'GR001',
      message = format('Build %s failed because of its inputs, and none of them is failed any more.', p_build),
      detail = 'NoFailedDependency.',
      hint = format('select * from gradient.repair(%s, ''retry'');', p_evaluation);
  end if;
  select min(o.derivation_build) into v_stopping
  from gradient.dispatched_job o
  where o.job in (select 'build:' || u.id from unnest(v_roots) as u (id)) and o.finished_at is null;
  if v_stopping is not null then
    raise exception using errcode = 'GR001',
      message = format('Build %s cannot be tried again before its worker has stopped it.', v_stopping),
      detail = 'WorkerStillStopping: its assignment is open.',
      hint = 'Try again in a few seconds; gradient workers shows who has it.';
  end if;

  v_closure := graph.evaluation_closure(p_evaluation);
  perform from gradient.derivation_build b
  where b.derivation = any (v_closure)
    and b.status in ('FailedPermanent', 'FailedTimeout', 'Aborted', 'DependencyFailed')
  order by b.derivation for no key update;
  with recursive member (id) as materialized (
    select unnest(v_closure)
  ), above (id) as (
    select unnest(v_roots)
    union
    select b.derivation
    from above a
    join gradient.derivation_dependency e on e.dependency = a.id
    join gradient.derivation_build b on b.derivation = e.derivation
    where b.status = 'DependencyFailed' and b.derivation in (select m.id from member m)
  ), moved as (
    update gradient.derivation_build b
    set status = 'Created', attempt = 0, failed_by = null, updated_at = v_now
    from above a
    where b.derivation = a.id
    returning b.derivation
  )
  select array_agg(m.derivation) into v_thawed from moved m;
  update gradient.build_job j set aborted = false
  where j.evaluation = p_evaluation and j.derivation_build = any (v_thawed) and j.aborted;
  insert into gradient.phase_event (subject_kind, subject, phase, at, detail)
  select 'Build', u.id, 'Created', v_now, jsonb_build_object('retried_in', p_evaluation)
  from unnest(v_roots) as u (id);

  v_failed := graph.repair_dependency_failed(p_evaluation, v_closure);
  v_need := graph.update_need(v_thawed || v_failed || array(
    select p.derivation from gradient.entry_point p where p.evaluation = p_evaluation));
  perform graph.settle_need(v_need.gained, v_need.lost || v_thawed);
  v_adopted := graph.adopt_pending_closure(p_evaluation);
  v_promoted := graph.promote_closure(v_closure || v_adopted);
  perform graph.check_evaluations_done(array(
    select distinct j.evaluation
    from gradient.build_job j
    join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
    where j.derivation_build = any (v_thawed || v_failed || v_need.lost || v_promoted)
       or j.evaluation = p_evaluation));
  return jsonb_build_object(
    'evaluation_status', (select e.status from gradient.evaluation e where e.id = p_evaluation),
    'reopened', v_reopened,
    'builds', (select count(*) from unnest(v_thawed) as u (id) where u.id <> all (v_failed)));
end
$fn$;

comment on function graph.retry_build(bigint, bigint) is
  'Tries failed or aborted shared build p_build again inside p_evaluation, with what failed because of it; reopens the evaluation when it has ended. Returns {evaluation_status, reopened, builds}. Errors GR001 (EvaluationFinished, NewerEvaluation, WrongStatus, WorkerStillStopping, NoFailedDependency), GR002.';
