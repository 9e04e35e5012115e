-- One setting as a number, in the unit that gradient.setting names.
-- Locks: none. Returns: the value in force. Errors: GR010 for a name that is not a setting.
-- Execute: server, operator, reader
create or replace function gradient.setting_int(p_name text)
  returns bigint
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  return gradient.setting_text(p_name)::bigint;
end
$fn$;

comment on function gradient.setting_int(text) is
  'The value in force of a numeric setting, in its unit. Error GR010: no such setting.';
