-- scheduler.claim_evaluations(worker, candidates, slots) -> assignments
-- Claims the first `slots` candidates that are still Queued. An evaluation that another session
-- holds is left out, not waited for. The claim is the open dispatched_job row: a second one for
-- the same job cannot exist. The evaluation stays Queued until its worker reports that it fetches.
-- Locks: evaluation rows FOR NO KEY UPDATE SKIP LOCKED. Waits for nobody.
-- Returns: the new assignments, each with the only copy of its token.

create function scheduler.claim_evaluations(
  p_worker text,
  p_evaluations bigint[],
  p_slots integer)
  returns table (assignment bigint, evaluation bigint, token text)
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_locked bigint[];
begin
  select array_agg(l.id) into v_locked
  from (
    select e.id
    from gradient.evaluation e
    where e.id = any(p_evaluations)
      and e.status = 'Queued'
    order by array_position(p_evaluations, e.id)
    limit p_slots
    for no key update skip locked
  ) l;

  return query
    with claim as materialized (
      select e.id as evaluation, array_position(p_evaluations, e.id) as place, t.project,
             w.instance, e.updated_at, scheduler.new_token() as token
      from gradient.evaluation e
      join gradient.task t on t.id = e.task
      join gradient.worker_connection w on w.worker_id = p_worker
      where e.id = any(v_locked)
        and e.status = 'Queued'
    ), opened as (
      insert into gradient.dispatched_job
        (kind, job, evaluation, project, worker_id, instance, steps, upload_token_hash,
         queued_at, dispatched_at)
      select 'Evaluation', 'eval:' || c.evaluation, c.evaluation, c.project, p_worker, c.instance,
             scheduler.evaluation_steps(), scheduler.token_hash(c.token),
             c.updated_at, gradient.current_time()
      from claim c
      order by c.place
      on conflict (job) where finished_at is null do nothing
      returning id, evaluation
    )
    select o.id, c.evaluation, c.token
    from opened o
    join claim c on c.evaluation = o.evaluation
    order by c.place;
end
$$;

comment on function scheduler.claim_evaluations(text, bigint[], integer) is
  'Claims at most p_slots of the evaluations (best first) for a worker and opens their assignments. One that is no longer Queued or that another session holds is left out.';
