-- Trigger: a statement that gave shared builds a name, or took one, appends one signed row for each
-- evaluation in flight.
-- Locks: none; appends only.
create or replace function graph.count_named_builds()
  returns trigger
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
begin
  insert into gradient.evaluation_shared_build_delta (evaluation, named, active, failed, queued, building)
  select j.evaluation, m.sign * count(*),
    m.sign * count(*) filter (where graph.blocks_evaluation(b.status, b.wanted)),
    m.sign * count(*) filter (where graph.failed_for_verdict(b.status)),
    m.sign * count(*) filter (where b.status = 'Queued'),
    m.sign * count(*) filter (where b.status = 'Building')
  from moved_rows j
  cross join (select case tg_op when 'INSERT' then 1 else -1 end as sign) as m
  join gradient.evaluation e on e.id = j.evaluation and graph.is_active(e.status)
  join gradient.derivation_build b on b.derivation = j.derivation_build
  group by j.evaluation, m.sign;
  return null;
end
$fn$;

comment on function graph.count_named_builds() is
  'Trigger function: appends to the evaluation counters what a statement named, or ceased to name.';

create trigger count_named_builds_added
  after insert on gradient.build_job
  referencing new table as moved_rows
  for each statement execute function graph.count_named_builds();

create trigger count_named_builds_removed
  after delete on gradient.build_job
  referencing old table as moved_rows
  for each statement execute function graph.count_named_builds();
