-- Gives up substituting: what upstream turned out not to have becomes an ordinary build with a fresh
-- budget. Says so on each evaluation that names it. Builds that ended well are left alone; one that
-- a worker holds keeps its status, and its report decides.
-- Locks: the turn; keys of the builds exclusive; shared builds by derivation.
-- Returns: the shared builds that are substituted no more. Idempotent.
-- Execute: server, operator
create or replace function graph.exhaust_substitution(p_builds bigint[])
  returns bigint[]
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_now constant timestamptz := gradient.current_time();
  v_exhausted bigint[];
begin
  perform graph.take_turn();
  perform graph.lock_shared_builds(null, p_builds);
  perform from gradient.derivation_build b where b.derivation = any (p_builds) order by b.derivation for no key update;
  with moved as (
    update gradient.derivation_build b
    set cache_available = false,
        status = case
          when b.status in ('Aborted', 'Skipped') or o.job is not null then b.status else 'Created' end,
        attempt = case when o.job is null then 0 else b.attempt end,
        substituted = false,
        retry_at = case when o.job is null then null else b.retry_at end,
        updated_at = v_now
    from unnest(p_builds) as u (id)
    left join gradient.dispatched_job o on o.job = 'build:' || u.id and o.finished_at is null
    where b.derivation = u.id and b.cache_available and not graph.succeeded(b.status)
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_exhausted from moved m;
  if cardinality(v_exhausted) = 0 then
    return '{}';
  end if;
  update gradient.derivation_output o
  set external_url = null, external = null
  where o.derivation = any (v_exhausted) and o.cached_path is null and o.external_url is not null;

  insert into gradient.evaluation_message (evaluation, level, message, source, created_at)
  select j.evaluation, 'Warning',
    format('Upstream does not have %s-%s after all; it is built.', d.hash, d.name), 'scheduler', v_now
  from gradient.build_job j
  join gradient.derivation d on d.id = j.derivation_build
  where j.derivation_build = any (v_exhausted)
  order by j.evaluation, d.id;
  insert into gradient.phase_event (subject_kind, subject, phase, at, detail)
  select 'Build', b.derivation, b.status::text, v_now, '{"substitution": "exhausted"}'
  from gradient.derivation_build b where b.derivation = any (v_exhausted);

  perform graph.after_status_move(v_exhausted, null);
  perform graph.fail_blocked(v_exhausted);
  perform graph.adopt_unnamed(v_exhausted);
  return v_exhausted;
end
$fn$;

comment on function graph.exhaust_substitution(bigint[]) is
  'Makes those of p_builds ordinary builds that were to be substituted and have not ended well: Created, nothing charged, with a Warning on the evaluations naming them. Returns them.';
