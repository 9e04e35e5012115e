-- Writes the counters of evaluations as absolute counts and drops their ledger rows.
-- Locks: advisory 640 (waited for); the evaluations by id. Returns: nothing.
create or replace function graph.recount_evaluations(p_evaluations bigint[])
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
begin
  perform pg_advisory_xact_lock(640);
  perform from gradient.evaluation e where e.id = any (p_evaluations) order by e.id for no key update;
  delete from gradient.evaluation_shared_build_delta d where d.evaluation = any (p_evaluations);
  update gradient.evaluation e
  set named_shared_builds = c.named, active_shared_builds = c.active, failed_shared_builds = c.failed,
      queued_shared_builds = c.queued, building_shared_builds = c.building
  from (
    select u.id,
      count(b.derivation) as named,
      count(*) filter (where graph.blocks_evaluation(b.status, b.wanted)) as active,
      count(*) filter (where graph.failed_for_verdict(b.status)) as failed,
      count(*) filter (where b.status = 'Queued') as queued,
      count(*) filter (where b.status = 'Building') as building
    from unnest(p_evaluations) as u (id)
    left join gradient.build_job j on j.evaluation = u.id
    left join gradient.derivation_build b on b.derivation = j.derivation_build
    group by u.id
  ) as c
  where e.id = c.id
    and (e.named_shared_builds, e.active_shared_builds, e.failed_shared_builds, e.queued_shared_builds, e.building_shared_builds)
      is distinct from (c.named, c.active, c.failed, c.queued, c.building);
end
$fn$;

comment on function graph.recount_evaluations(bigint[]) is
  'Counts named, active, failed, queued and building shared builds of p_evaluations anew and drops their ledger rows.';
