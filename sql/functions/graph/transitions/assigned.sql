-- graph.assigned(assignments) -> attempts opened
-- Opens the attempt of each build assignment and notes when its shared build was first handed out.
-- Internal to scheduler.claim_builds, which made the assignments and holds the shared builds' rows.
-- OFFSET 0 keeps each lookup by key, also in a plan made while the tables were small.
-- It moves no status, which is what the counters' trigger would look for, so that stays off.
-- Locks: none of its own.

create function graph.assigned(p_assignments bigint[])
  returns bigint
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
  set gradient.counters_only = 'on'
as $$
declare
  v_builds bigint[];
  v_at timestamptz;
begin
  select array_agg(a.derivation_build), min(a.dispatched_at) into v_builds, v_at
  from gradient.dispatched_job a
  where a.id = any(p_assignments)
    and a.kind = 'Build';

  insert into gradient.build_attempt
    (build_job, derivation_build, dispatched_job, substitute, outcome, build_context, created_at)
  select j.id, a.derivation_build, a.id, a.substitute, 'Running',
         jsonb_build_object('worker', a.worker_id, 'instance', a.instance), a.dispatched_at
  from gradient.dispatched_job a
  left join lateral (
    select j.id
    from gradient.build_job j
    where j.evaluation = a.evaluation and j.derivation_build = a.derivation_build
    offset 0
  ) j on true
  where a.id = any(p_assignments)
    and a.kind = 'Build'
  order by a.id;

  update gradient.derivation_build b
  set dispatched_at = v_at
  where b.derivation = any(v_builds)
    and b.dispatched_at is null;

  return coalesce(cardinality(v_builds), 0);
end
$$;

comment on function graph.assigned(bigint[]) is
  'Opens the Running attempt of every build assignment given, all of them new; returns how many. The caller holds the shared builds'' rows.';
