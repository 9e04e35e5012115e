-- scheduler.offers(worker) -> job, generation, candidate
-- The jobs a worker may be given next, best first: what scheduler.assign would consider now, within
-- the setting offers.limit. A session sends the (job, generation) pairs it has not sent; a job that
-- came back to the queue has a new generation. Nothing is owned by being offered.
-- Every table is read by key, so that the view costs what is in it and not what the graph holds.
-- Locks: none.
-- Execute: server

create function scheduler.offers(p_worker text)
  returns table (job text, generation bigint, candidate jsonb)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
begin
  return query
    select 'eval:' || c.evaluation, c.generation,
           jsonb_build_object('job', 'eval:' || c.evaluation, 'kind', 'evaluation')
    from scheduler.evaluation_candidates(p_worker, gradient.setting_int('eval.per_pass')::integer) c
    order by c.place;

  return query
    select 'build:' || c.derivation_build, c.generation,
           jsonb_build_object(
             'job', 'build:' || c.derivation_build,
             'kind', 'build',
             'architecture', c.architecture,
             'required_features', to_jsonb(c.required_features),
             'drv', d.hash || '-' || d.name || '.drv',
             'outputs', o.outputs)
    from scheduler.build_candidates(p_worker, gradient.setting_int('offers.limit')::integer) c
    cross join lateral (
      select d.hash, d.name
      from gradient.derivation d
      where d.id = c.derivation_build
      offset 0
    ) d
    cross join lateral (
      select coalesce(jsonb_agg('/nix/store/' || o.hash || '-' || o.package order by o.name), '[]') as outputs
      from gradient.derivation_output o
      where o.derivation = c.derivation_build
    ) o
    order by c.place;
end
$$;

comment on function scheduler.offers(text) is
  'The bounded view of what a worker may be given: job (eval:<id>, build:<id>), generation (grows whenever the job becomes available anew) and candidate (JobCandidate of the wire), best first, evaluations before builds. Empty for a worker that may be given nothing.';
