-- Step of the consistency check: an evaluation at its builds that waits for none of them gets its verdict.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_verdicts(p_after bigint, p_limit integer, out drift bigint, out last bigint)
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_ids bigint[];
begin
  drift := 0;
  select max(r.id) into last
  from (select x.id as id from gradient.evaluation x where x.id > p_after and x.status = 'Building' order by x.id limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    select array_agg(e.id order by e.id) into v_ids
    from gradient.evaluation e
    where e.id > p_after and e.id <= last and e.status = 'Building'
      and not exists (
        select
        from gradient.build_job j
        join gradient.derivation_build b on b.derivation = j.derivation_build
        where j.evaluation = e.id and graph.blocks_evaluation(b.status, b.wanted));
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  drift := cardinality(graph.check_evaluations_done(v_ids));
  insert into gradient.drift (at, counter, evaluation, context)
  select gradient.current_time(), 'verdict', u.id, 'consistency_check' from unnest(v_ids) as u (id);
end
$fn$;

comment on function graph.check_verdicts(bigint, integer) is
  'Consistency check of verdicts: p_limit evaluations at their builds after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
