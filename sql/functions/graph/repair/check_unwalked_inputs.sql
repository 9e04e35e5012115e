-- Step of the consistency check: unwalked_inputs against the inputs' rows. A difference anywhere makes it
-- count the whole graph anew, from what is walked and has its .drv, so that what is right by a wrong
-- neighbour is not mistaken for wrong.
-- Looks first without a lock, since every commit leaves one consistent picture; what it finds it looks
-- at again under the turn, then writes it.
-- Locks: none when nothing is wrong; else the turn, then the rows written. Returns: how many were wrong;
-- the last id looked at, null when nothing follows.
-- Execute: server, operator
create or replace function graph.check_unwalked_inputs(p_after bigint, p_limit integer, out drift bigint, out last bigint)
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
  select max(r.id) into last
  from (select x.id as id from gradient.derivation x where x.id > p_after order by x.id limit p_limit) as r;
  if last is null then
    return;
  end if;
  for v_look in 1..2 loop
    select array_agg(d.id) into v_ids
    from gradient.derivation d
    where d.id > p_after and d.id <= last
      and d.unwalked_inputs <> (
        select count(*)
        from gradient.derivation_dependency e
        join gradient.derivation i on i.id = e.dependency
        where e.derivation = d.id and e.kind <> 'Runtime'
          and not graph.recorded(i.walked, i.drv_present, i.unwalked_inputs));
    if v_ids is null then
      return;
    end if;
    perform graph.take_turn();
  end loop;
  with recursive unrecorded (id) as (
    select d.id from gradient.derivation d where not (d.walked and d.drv_present)
    union
    select e.derivation
    from unrecorded u
    join gradient.derivation_dependency e on e.dependency = u.id and e.kind <> 'Runtime'
  ), counted as (
    select e.derivation, count(*) as inputs
    from unrecorded u
    join gradient.derivation_dependency e on e.dependency = u.id and e.kind <> 'Runtime'
    group by e.derivation
  )
  select array_agg(d.id order by d.id), array_agg(d.unwalked_inputs order by d.id),
    array_agg(coalesce(c.inputs, 0) order by d.id)
  into v_ids, v_stored, v_right
  from gradient.derivation d
  left join counted c on c.derivation = d.id
  where d.unwalked_inputs <> coalesce(c.inputs, 0);
  update gradient.derivation d set unwalked_inputs = r.inputs
  from unnest(v_ids, v_right) as r (id, inputs)
  where d.id = r.id;
  last := null;
  drift := cardinality(v_ids);
  perform graph.report_drift('unwalked_inputs', v_ids, v_stored, v_right, 'consistency_check');
end
$fn$;

comment on function graph.check_unwalked_inputs(bigint, integer) is
  'Consistency check of unwalked_inputs: p_limit derivations after id p_after. Returns how many were wrong and are right now, and the last id looked at (null: nothing follows).';
