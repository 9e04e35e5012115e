-- What came back to Created over an input that has a lasting failure does not wait for it: it fails
-- with that input, and so does whatever pending needs it. Looks at p_ids and at what they want below,
-- since that may have come back with them.
-- Locks: under the turn; rows by derivation. Returns: the shared builds failed.
create or replace function graph.fail_blocked(p_ids bigint[])
  returns bigint[]
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_failed bigint[];
begin
  with recursive pending (id) as (
    select b.derivation
    from gradient.derivation_build b
    where b.derivation = any (p_ids) and b.wanted and b.status in ('Created', 'Queued', 'FailedTransient')
    union
    select c.derivation
    from pending p
    join gradient.derivation_dependency e on e.derivation = p.id
    join gradient.derivation_build c on c.derivation = e.dependency
    where c.wanted and c.status in ('Created', 'Queued', 'FailedTransient')
  )
  select coalesce(array_agg(distinct x.id), '{}') into v_failed
  from (
    select distinct i.derivation as input, coalesce(i.failed_by, (
      select max(a.id) from gradient.build_attempt a
      where a.derivation_build = i.derivation and a.outcome = 'Failed')) as attempt
    from pending p
    join gradient.derivation_build b on b.derivation = p.id and not b.cache_available
    join gradient.derivation_dependency e on e.derivation = p.id
    join gradient.derivation_build i on i.derivation = e.dependency
    where i.status in ('FailedPermanent', 'DependencyFailed', 'FailedTimeout')
  ) as f
  cross join lateral unnest(graph.cascade_dependency_failed(f.input, f.attempt)) as x (id);
  if cardinality(v_failed) > 0 then
    perform graph.after_status_move(v_failed, null);
  end if;
  return v_failed;
end
$fn$;

comment on function graph.fail_blocked(bigint[]) is
  'Makes DependencyFailed what is wanted and pending at or below p_ids and has an input with a lasting failure, and what needs it. Returns the shared builds failed.';
