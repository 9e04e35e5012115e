-- Trigger: a statement that moved status or need of shared builds appends one signed row for each
-- evaluation in flight that names them. Spreads that move only counters switch it off for their own
-- statement (session setting gradient.counters_only).
-- Locks: none; appends only.
create or replace function graph.count_shared_build_moves()
  returns trigger
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  -- A plan without a parameter is kept for the session, whatever the setting above says, and would be
  -- the one of the first, tiny transition table.
  v_operation constant text := 'UPDATE';
begin
  insert into gradient.evaluation_shared_build_delta (evaluation, named, active, failed, queued, building)
  select j.evaluation, 0, sum(m.active), sum(m.failed), sum(m.queued), sum(m.building)
  from (
    select s.derivation,
      sum(s.sign * graph.blocks_evaluation(s.status, s.wanted)::integer) as active,
      sum(s.sign * graph.failed_for_verdict(s.status)::integer) as failed,
      sum(s.sign * (s.status = 'Queued')::integer) as queued,
      sum(s.sign * (s.status = 'Building')::integer) as building
    from (
      select n.derivation, n.status, n.wanted, 1 as sign from new_rows n where tg_op = v_operation
      union all
      select o.derivation, o.status, o.wanted, -1 from old_rows o where tg_op = v_operation
    ) as s
    group by s.derivation
  ) as m
  join gradient.build_job j on j.derivation_build = m.derivation
  join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
  where (m.active, m.failed, m.queued, m.building) <> (0, 0, 0, 0)
  group by j.evaluation
  having (sum(m.active), sum(m.failed), sum(m.queued), sum(m.building)) <> (0, 0, 0, 0);
  return null;
end
$fn$;

comment on function graph.count_shared_build_moves() is
  'Trigger function: appends to the evaluation counters what a statement moved on shared builds.';

create trigger count_shared_build_moves
  after update on gradient.derivation_build
  referencing old table as old_rows new table as new_rows
  for each statement
  when (current_setting('gradient.counters_only', true) is distinct from 'on')
  execute function graph.count_shared_build_moves();
