-- scheduler.evaluation_specs(evaluations) -> the content of evaluation jobs
-- FlakeJob of the wire for each evaluation. Once a worker has named the commit, every later job of
-- the evaluation reads exactly that commit. A repository that is a store path is an uploaded source.
-- PL/pgSQL for its kept plan: planning takes longer than reading.
-- Locks: none.

create function scheduler.evaluation_specs(p_evaluations bigint[])
  returns table (evaluation bigint, spec jsonb)
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
    select e.id,
           jsonb_build_object(
             'kind', 'flake',
             'evaluation', e.id,
             'steps', to_jsonb(scheduler.evaluation_steps()),
             'source', case
               when e.repository like '/nix/store/%' then jsonb_build_object(
                 'kind', 'cached', 'path', e.repository, 'revision', coalesce(c.hash, e.revision))
               else jsonb_build_object(
                 'kind', 'repository', 'url', e.repository, 'revision', coalesce(c.hash, e.revision))
             end,
             'wildcard', e.wildcard,
             'walk_mode', lower(e.walk_mode::text),
             'input_overrides', o.overrides,
             'timeout_secs', t.eval_timeout_secs,
             'memory_mb', t.eval_memory_mb,
             'allow_import_from_derivation', t.allow_import_from_derivation)
    from unnest(p_evaluations) as n(evaluation)
    join gradient.evaluation e on e.id = n.evaluation
    join gradient.task t on t.id = e.task
    left join gradient.commit c on c.id = e.commit
    cross join lateral (
      select coalesce(jsonb_object_agg(o.input_name, o.url), '{}') as overrides
      from gradient.evaluation_flake_input_override o
      where o.evaluation = e.id
    ) o;
end
$$;

comment on function scheduler.evaluation_specs(bigint[]) is
  'FlakeJob of the wire for evaluations: steps, source, attribute pattern, limits of the task (seconds, MiB) and the overrides noted when the evaluation started.';
