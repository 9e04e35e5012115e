-- Adds the ledger of signed rows to the evaluations' columns. Skips when somebody folds already.
-- Locks: the turn, since a verdict counts anew under it; advisory 640 (tried); the evaluations by id.
-- Returns: the number of ledger rows folded.
-- Execute: server, operator
create or replace function graph.fold_evaluation_counters()
  returns bigint
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_folded bigint;
begin
  if not exists (select from gradient.evaluation_shared_build_delta) then
    return 0;
  end if;
  perform graph.take_turn();
  if not pg_try_advisory_xact_lock(640) then
    return 0;
  end if;
  perform from gradient.evaluation e
  where e.id in (select d.evaluation from gradient.evaluation_shared_build_delta d)
  order by e.id for no key update;

  with taken as (
    delete from gradient.evaluation_shared_build_delta d
    returning d.*
  ), summed as (
    select t.evaluation, count(*) as rows, sum(t.named) as named, sum(t.active) as active,
      sum(t.failed) as failed, sum(t.queued) as queued, sum(t.building) as building
    from taken t
    group by t.evaluation
  ), written as (
    update gradient.evaluation e
    set named_shared_builds = e.named_shared_builds + s.named,
        active_shared_builds = e.active_shared_builds + s.active,
        failed_shared_builds = e.failed_shared_builds + s.failed,
        queued_shared_builds = e.queued_shared_builds + s.queued,
        building_shared_builds = e.building_shared_builds + s.building
    from summed s
    where e.id = s.evaluation
  )
  select coalesce(sum(s.rows), 0) into v_folded from summed s;
  return v_folded;
end
$fn$;

comment on function graph.fold_evaluation_counters() is
  'Adds the rows of evaluation_shared_build_delta to the counters of their evaluations and deletes them. Returns how many; 0 also when another session is folding.';
