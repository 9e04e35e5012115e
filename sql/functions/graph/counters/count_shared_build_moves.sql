-- Trigger: a statement that moved status or need of shared builds appends one signed row for each
-- evaluation in flight that names them. Spreads that move only counters switch it off for their own
-- statement (session setting gradient.counters_only).
-- Locks: none; appends only.
create or replace function graph.count_shared_build_moves()
  returns trigger
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  insert into gradient.evaluation_shared_build_delta (evaluation, named, active, failed, queued, building)
  select j.evaluation, 0, sum(m.active), sum(m.failed), sum(m.queued), sum(m.building)
  from (
    select n.derivation,
      graph.blocks_evaluation(n.status, n.wanted)::integer - graph.blocks_evaluation(o.status, o.wanted)::integer as active,
      graph.failed_for_verdict(n.status)::integer - graph.failed_for_verdict(o.status)::integer as failed,
      (n.status = 'Queued')::integer - (o.status = 'Queued')::integer as queued,
      (n.status = 'Building')::integer - (o.status = 'Building')::integer as building
    from new_rows n
    join old_rows o on o.derivation = n.derivation
    where (n.status, n.wanted) is distinct from (o.status, o.wanted)
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
