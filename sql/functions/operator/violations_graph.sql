-- Broken invariants of what is known: the presence of .drv files, recorded subtrees, the backing
-- of outputs, and the runtime edges that stored references imply.
-- Locks: none.
-- Returns: as gradient.violations().
-- Execute: none
create or replace function gradient.violations_graph()
returns table (rule text, subject text, expected text, found text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set work_mem = '64MB'
as $body$
begin
  return query
  select 'drv_present', format('derivation %s %s-%s', d.id, d.hash, d.name),
    (p.id is not null)::text, d.drv_present::text
  from gradient.derivation d
  left join gradient.cached_path p on p.hash = d.hash and p.package = d.name || '.drv'
  where d.drv_present is distinct from (p.id is not null);

  -- Recorded: walked, its own .drv in the cache, and every build input recorded.
  return query
  select 'unwalked_inputs', format('derivation %s %s-%s', d.id, d.hash, d.name),
    coalesce(c.unrecorded, 0)::text, d.unwalked_inputs::text
  from gradient.derivation d
  left join (
    select e.derivation, count(*) as unrecorded
    from gradient.derivation_dependency e
    join gradient.derivation i on i.id = e.dependency
    where e.kind in ('Build', 'Both')
      and not (i.walked and i.drv_present and i.unwalked_inputs = 0)
    group by e.derivation
  ) c on c.derivation = d.id
  where d.unwalked_inputs is distinct from coalesce(c.unrecorded, 0);

  return query
  select 'output_backing',
    format('output %s of derivation %s: %s-%s', o.name, o.derivation, o.hash, o.package),
    coalesce('cached path ' || p.id, 'no cached path'),
    coalesce('cached path ' || o.cached_path, 'no cached path')
  from gradient.derivation_output o
  left join gradient.cached_path p on p.hash = o.hash
  where o.cached_path is distinct from p.id;

  -- A stored output that refers to another derivation's output makes a runtime edge. What a
  -- derivation itself produces (twins: also under another derivation's name) makes none: it
  -- would wait for itself.
  return query
  with reference as (
    select distinct o.derivation, substr(r.name, 1, 32) as hash
    from gradient.derivation_output o
    join gradient.cached_path p on p.hash = o.hash
    cross join lateral unnest(p."references") as r (name)
  ), needed as (
    select distinct r.derivation, i.derivation as dependency
    from reference r
    join gradient.derivation_output i on i.hash = r.hash
    left join gradient.derivation_output own
      on own.derivation = r.derivation and own.hash = r.hash
    where own.id is null
  )
  select 'runtime_edge',
    format('derivation %s refers to an output of derivation %s', n.derivation, n.dependency),
    'an edge of kind Runtime or Both', coalesce('an edge of kind ' || e.kind, 'no edge')
  from needed n
  left join gradient.derivation_dependency e
    on e.derivation = n.derivation and e.dependency = n.dependency
  where e.kind is null or e.kind = 'Build';
end;
$body$;

comment on function gradient.violations_graph() is
'The part of gradient.violations() about what is known of the graph: drv_present, unwalked_inputs, output_backing, runtime_edge.';
