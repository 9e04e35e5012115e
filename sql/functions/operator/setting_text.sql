-- One setting as text.
-- Locks: none. Returns: the value in force. Errors: GR010 for a name that is not a setting.
-- Execute: server, operator, reader
create or replace function gradient.setting_text(p_name text)
  returns text
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_value text;
begin
  select s.value into v_value from gradient.setting s where s.name = p_name;
  if not found then
    raise exception using errcode = 'GR010',
      message = format('There is no setting "%s".', p_name),
      hint = 'select name, value, unit, description from gradient.setting order by name;';
  end if;
  return v_value;
end
$fn$;

comment on function gradient.setting_text(text) is
  'The value in force of a setting, as text. Error GR010: no such setting.';
