-- scheduler.build_specs(builds) -> the content of build jobs
-- BuildJob of the wire for each shared build. A limit that the derivation does not name is the
-- setting's; 0 is no limit.
-- PL/pgSQL for its kept plan: planning takes longer than reading. OFFSET 0 keeps each lookup by key,
-- also in a plan made while the tables were small.
-- Locks: none.

create function scheduler.build_specs(p_builds bigint[])
  returns table (derivation_build bigint, spec jsonb)
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    select b.derivation,
           jsonb_build_object(
             'kind', 'build',
             'build', b.derivation,
             'drv', d.hash || '-' || d.name || '.drv',
             'build_kind', case
               when b.cache_available then 'substitute'
               when d.architecture = 'builtin' and d.is_fixed_output then 'download'
               else 'build' end,
             'outputs', o.outputs,
             'is_fixed_output', d.is_fixed_output,
             'timeout_secs', coalesce(b.timeout_secs, l.timeout_secs),
             'max_silent_secs', coalesce(b.max_silent_secs, l.max_silent_secs),
             'log_limit', l.log_limit)
    from gradient.derivation_build b
    cross join lateral (
      select d.id, d.hash, d.name, d.architecture, d.is_fixed_output
      from gradient.derivation d
      where d.id = b.derivation
      offset 0
    ) d
    cross join lateral (
      select coalesce(
        jsonb_agg(
          jsonb_build_object('name', o.name, 'path', '/nix/store/' || o.hash || '-' || o.package)
          order by o.name),
        '[]') as outputs
      from gradient.derivation_output o
      where o.derivation = d.id
    ) o
    cross join (
      select gradient.setting_int('build.default_timeout') as timeout_secs,
             gradient.setting_int('build.default_max_silent') as max_silent_secs,
             gradient.setting_int('build.log_limit') as log_limit
    ) l
    where b.derivation = any(p_builds);
end
$$;

comment on function scheduler.build_specs(bigint[]) is
  'BuildJob of the wire for shared builds: a substitution where the outputs are upstream, a download for a builtin fetch, else a build. Limits in seconds and bytes, 0 is none.';
