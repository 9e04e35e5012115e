-- Step of the consistency check: wanted against a walk over the whole graph, which is one chunk, however
-- large p_limit is. A Skipped build that is reached is walked as the Created one that
-- graph.check_skipped makes of it next.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_wanted(p_after bigint, p_limit integer, out drift bigint, out last bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
  set work_mem = '64MB'
as $fn$
declare
  v_ids bigint[];
  v_stored bigint[];
  v_right bigint[];
begin
  drift := 0;
  last := null;
  -- The first chunk is the only one.
  if p_after > 0 or p_limit < 1 then
    return;
  end if;
  for v_look in 1..2 loop
    with recursive reached (id) as (
      select b.derivation
      from gradient.derivation_build b
      where graph.is_open(b.fetchable, b.status)
        and b.derivation in (select s.derivation from graph.need_seeds(array(
          select distinct p.derivation from gradient.entry_point p)) s)
      union
      select c.derivation
      from reached r
      join gradient.derivation_build p on p.derivation = r.id
      join gradient.derivation pd on pd.id = r.id
      join gradient.derivation_dependency e on e.derivation = r.id
      join gradient.derivation_build c on c.derivation = e.dependency
      where graph.is_open(c.fetchable, c.status)
        and (e.kind <> 'Build' or graph.is_builder(pd.walked, p.probed, p.cache_available,
          case when p.status = 'Skipped' then 'Created' else p.status end))
    )
    select array_agg(b.derivation order by b.derivation), array_agg(b.wanted::integer order by b.derivation),
      array_agg((not b.wanted)::integer order by b.derivation)
    into v_ids, v_stored, v_right
    from gradient.derivation_build b
    left join reached r on r.id = b.derivation
    where b.wanted <> (r.id is not null);
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  update gradient.derivation_build b set wanted = not b.wanted where b.derivation = any (v_ids);
  drift := cardinality(v_ids);
  perform graph.report_drift('wanted', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_wanted(bigint, integer) is
  'Consistency check of wanted, over the whole graph in one chunk, after id 0. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
