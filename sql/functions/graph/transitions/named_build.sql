-- A shared build that an evaluation names, locked: what a person asks of it is asked inside of that
-- evaluation.
-- Locks: under the turn; the shared build's row. Returns: the row.
-- Errors: GR002 no such evaluation, or it does not name the build.
create or replace function graph.named_build(p_evaluation bigint, p_build bigint)
  returns gradient.derivation_build
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_build gradient.derivation_build;
begin
  if not exists (select from gradient.evaluation e where e.id = p_evaluation) then
    raise exception using errcode = 'GR002',
      message = format('There is no evaluation %s.', p_evaluation),
      hint = 'select id, status from gradient.evaluation_overview order by id desc;';
  end if;
  select b.* into v_build
  from gradient.derivation_build b
  join gradient.build_job j on j.derivation_build = b.derivation and j.evaluation = p_evaluation
  where b.derivation = p_build
  for no key update of b;
  if not found then
    raise exception using errcode = 'GR002',
      message = format('Evaluation %s does not name a build %s.', p_evaluation, p_build),
      hint = format('gradient build list --eval %s', p_evaluation);
  end if;
  return v_build;
end
$fn$;

comment on function graph.named_build(bigint, bigint) is
  'Locks and returns shared build p_build if p_evaluation names it. Error GR002 otherwise.';
