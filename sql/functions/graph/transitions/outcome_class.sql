-- The consequences of one way to end.
-- Locks: none. Returns: the row. Errors: GR005 no such class.
create or replace function graph.outcome_class(p_name text)
  returns gradient.outcome_class
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_class gradient.outcome_class;
begin
  select * into v_class from gradient.outcome_class c where c.name = p_name;
  if not found then
    raise exception using errcode = 'GR005',
      message = format('There is no outcome class "%s".', p_name),
      hint = 'select name, decision, description from gradient.outcome_class order by name;';
  end if;
  return v_class;
end
$fn$;

comment on function graph.outcome_class(text) is
  'The row of gradient.outcome_class named p_name. Error GR005: none.';
