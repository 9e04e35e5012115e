-- The keys of customer/shared-builds, Counter Locking: a seed holds its dependencies' keys shared,
-- a flip its own exclusively before it reads the edges into itself. One sorted pass; a key named in
-- both lists is taken exclusively at once, since an upgrade would deadlock.
-- Locks: advisory (643, hashtext(derivation id)) until the transaction ends; nothing while the
-- turn is held. Returns: nothing. Volatile, so that what is read next is read after the wait.
create or replace function graph.lock_shared_builds(p_shared bigint[], p_exclusive bigint[])
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  if graph.turn_held() then
    return;
  end if;
  perform case when k.exclusive
      then pg_advisory_xact_lock(643, k.key)
      else pg_advisory_xact_lock_shared(643, k.key)
    end
  from (
    select hashtext(u.id::text) as key, bool_or(u.exclusive) as exclusive
    from (
      select unnest(p_shared), false
      union all
      select unnest(p_exclusive), true
    ) as u (id, exclusive)
    where u.id is not null
    group by 1
    order by 1
  ) as k;
end
$fn$;

comment on function graph.lock_shared_builds(bigint[], bigint[]) is
  'Takes the keys of shared builds in one sorted pass: p_shared shared, p_exclusive exclusively. Takes none while the transaction holds the turn.';
