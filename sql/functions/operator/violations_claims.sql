-- Broken claims: a cache without holes. A Completed evaluation claimed, for every cache its
-- project wrote, the runtime closure of its entry points' outputs as it was stored then. Which
-- caches those were is not kept; one counts that had claimed an output of the entry point by the
-- verdict, so that a later subscription owes nothing. Nor does a path that was stored later.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_claims()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  with recursive verdict as (
    -- Of several verdicts over one entry point the last one asks for the most.
    select s.cache, p.derivation, max(v.finished_at) as finished_at
    from gradient.evaluation v
    join gradient.task t on t.id = v.task
    join gradient.project_cache s on s.project = t.project
    join gradient.cache c on c.id = s.cache
    join gradient.entry_point p on p.evaluation = v.id
    join gradient.derivation_output o on o.derivation = p.derivation
    join gradient.cached_path_signature k
      on k.cached_path = o.cached_path and k.cache = s.cache and k.created_at <= v.finished_at
    where v.status = 'Completed' and c.active and s.mode in ('ReadWrite', 'WriteOnly')
    group by s.cache, p.derivation
  ), reference as materialized (
    select p.hash, substr(r.name, 1, 32) as reference
    from gradient.cached_path p
    cross join lateral unnest(p."references") as r (name)
  ), closure as (
    select v.cache, o.hash, v.finished_at
    from verdict v
    join gradient.derivation_output o on o.derivation = v.derivation
    union
    select c.cache, r.reference, c.finished_at
    from closure c
    join reference r on r.hash = c.hash
  )
  select 'claim', format('path %s-%s in cache %s', p.hash, p.package, c.cache),
    'claimed', 'not claimed'
  from closure c
  join gradient.cached_path p on p.hash = c.hash and p.created_at <= c.finished_at
  left join gradient.cached_path_signature s on s.cached_path = p.id and s.cache = c.cache
  where s.cache is null
  group by p.hash, p.package, c.cache;
end;
$body$;

comment on function gradient.violations_claims() is
'The part of gradient.violations() about claims: what Completed evaluations left in their caches.';
