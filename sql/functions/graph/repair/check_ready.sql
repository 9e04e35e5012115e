-- Step of the consistency check: ready_build holds exactly what graph.ready_rows says.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_ready(p_after bigint, p_limit integer, out drift bigint, out last bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_ids bigint[];
  v_stored bigint[];
  v_right bigint[];
begin
  drift := 0;
  select max(r.id) into last
  from (select x.derivation as id from gradient.derivation_build x where x.derivation > p_after order by x.derivation limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    with stored as (
      select r.derivation_build, r.project, c.architecture, c.required_features
      from gradient.ready_build r
      join gradient.build_class c on c.id = r.class
      where r.derivation_build > p_after and r.derivation_build <= last
    ), expected as (
      select t.derivation_build, t.project, t.architecture, t.required_features
      from graph.ready_rows(array(
        select b.derivation from gradient.derivation_build b
        where b.derivation > p_after and b.derivation <= last and b.status = 'Queued')) t
    )
    select array_agg(w.id order by w.id), array_agg(w.stored order by w.id), array_agg(w.expected order by w.id)
    into v_ids, v_stored, v_right
    from (
      select coalesce(s.derivation_build, e.derivation_build) as id,
        count(s.project) as stored, count(e.project) as expected
      from stored s
      full join expected e on e.derivation_build = s.derivation_build and e.project = s.project
        and e.architecture = s.architecture and e.required_features = s.required_features
      group by 1
      having bool_or(s.project is null or e.project is null)
    ) as w;
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  perform graph.sync_ready(v_ids);
  drift := cardinality(v_ids);
  perform graph.report_drift('ready_build', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_ready(bigint, integer) is
  'Consistency check of ready_build: p_limit shared builds after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
