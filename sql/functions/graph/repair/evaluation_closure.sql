-- Everything below what an evaluation names, over every kind of edge, the named ones included.
-- Locks: none. Returns: the derivations.
create or replace function graph.evaluation_closure(p_evaluation bigint)
  returns bigint[]
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_closure bigint[];
begin
  with recursive closure (id) as (
    select j.derivation_build from gradient.build_job j where j.evaluation = p_evaluation
    union
    select e.dependency from closure c join gradient.derivation_dependency e on e.derivation = c.id
  )
  select coalesce(array_agg(c.id), '{}') into v_closure from closure c;
  return v_closure;
end
$fn$;

comment on function graph.evaluation_closure(bigint) is
  'The derivations that p_evaluation names, and everything below them.';
