-- graph.assigned(assignments) -> attempts opened
-- Opens the attempt of each build assignment and notes when its shared build was first handed out.
-- Internal to scheduler.claim_builds, which holds the shared builds' rows; says nothing twice.
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
  v_opened bigint;
begin
  insert into gradient.build_attempt
    (build_job, derivation_build, dispatched_job, substitute, outcome, build_context, created_at)
  select j.id, a.derivation_build, a.id, a.substitute, 'Running',
         jsonb_build_object('worker', a.worker_id, 'instance', a.instance), gradient.current_time()
  from gradient.dispatched_job a
  left join gradient.build_job j
    on j.evaluation = a.evaluation and j.derivation_build = a.derivation_build
  where a.id = any(p_assignments)
    and a.kind = 'Build'
    and not exists (
      select from gradient.build_attempt t where t.dispatched_job = a.id)
  order by a.id;
  get diagnostics v_opened = row_count;

  update gradient.derivation_build b
  set dispatched_at = a.dispatched_at
  from gradient.dispatched_job a
  where a.id = any(p_assignments)
    and a.kind = 'Build'
    and b.derivation = a.derivation_build
    and b.dispatched_at is null;

  return v_opened;
end
$$;

comment on function graph.assigned(bigint[]) is
  'Opens the Running attempt of every build assignment given that has none; returns how many. The caller holds the shared builds'' rows.';
