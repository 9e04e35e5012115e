-- Whether a build has lost its inputs so often that they are not made again for it, and it fails
-- (the circuit of reference B.4). Counts the attempt that is just ending.
-- Locks: none. Returns: whether.
create or replace function graph.inputs_given_up(p_build bigint)
  returns boolean
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return (
    select count(*) from gradient.build_attempt a
    where a.derivation_build = p_build and a.outcome_class = 'missing_input')
    > gradient.setting_int('build.inputs_unavailable_max_loops');
end
$fn$;

comment on function graph.inputs_given_up(bigint) is
  'Whether more attempts of p_build ended for missing inputs than the setting build.inputs_unavailable_max_loops.';
