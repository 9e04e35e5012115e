-- scheduler.evaluation_candidates(worker, limit) -> queued evaluations, oldest first
-- What assignment would consider for a worker. All steps go to one worker, which needs fetch and
-- eval. An evaluation that an open assignment holds is not a candidate, even while it is Queued:
-- it turns Fetching only when its worker reports so.
-- PL/pgSQL for its kept plan: planning takes longer than reading.
-- Locks: none; a candidate is a hint until scheduler.claim_evaluations has claimed it.

create function scheduler.evaluation_candidates(p_worker text, p_limit integer)
  returns table (place bigint, evaluation bigint, project bigint, generation bigint, queued_at timestamptz)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    with served as materialized (
      select s.project
      from gradient.worker_connection w
      join gradient.server_instance i on i.name = w.instance and not i.draining
      join scheduler.served_project s on s.project = any(w.projects)
      where w.worker_id = p_worker
        and w.can_fetch and w.can_eval
        and not w.draining
        and w.disconnected_at is null
    ), oldest as (
      select e.id, e.prioritized, t.project, e.updated_at
      from gradient.evaluation e
      join gradient.task t on t.id = e.task
      join served s on s.project = t.project
      where e.status = 'Queued'
        and not exists (
          select from gradient.dispatched_job d
          where d.job = 'eval:' || e.id and d.finished_at is null)
      order by e.prioritized desc, e.id
      limit p_limit
    )
    select row_number() over (order by o.prioritized desc, o.id), o.id, o.project,
           coalesce((
             select max(d.id) from gradient.dispatched_job d
             where d.evaluation = o.id and d.kind = 'Evaluation'), 0),
           o.updated_at
    from oldest o
    order by 1;
end
$$;

comment on function scheduler.evaluation_candidates(text, integer) is
  'The queued evaluations a worker may be given, prioritized ones first, then the oldest; at most p_limit. '
  'generation is the last assignment of the evaluation, so a returned one is offered anew. No row for a worker that may be given nothing.';
