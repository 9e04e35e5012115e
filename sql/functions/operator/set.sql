-- Changes one setting after checking the value against the kind of its default.
-- Locks: the setting's row. Returns: the value now in force.
-- Execute: operator
create or replace function gradient.set(p_name text, p_value text)
  returns text
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_setting gradient.setting;
begin
  select * into v_setting from gradient.setting s where s.name = p_name for update;
  if not found then
    raise exception using errcode = 'GR010',
      message = format('There is no setting "%s".', p_name),
      hint = 'select name, value, unit, description from gradient.setting order by name;';
  end if;
  if (v_setting.unit = 'on/off' and p_value not in ('on', 'off'))
     or (v_setting.default_value ~ '^[0-9]+$' and coalesce(p_value, '') !~ '^[0-9]{1,15}$')
     or p_value is null then
    raise exception using errcode = 'GR010',
      message = format('"%s" is no value for the setting "%s".', coalesce(p_value, 'null'), p_name),
      detail = format('It takes %s; its default is %s.', v_setting.unit, v_setting.default_value),
      hint = format('select gradient.set(%L, %L);', p_name, v_setting.default_value);
  end if;
  update gradient.setting set value = p_value where name = p_name;
  return p_value;
end
$fn$;

comment on function gradient.set(text, text) is
  'Changes a setting. p_name: its name; p_value: the value in its unit. Returns the value. Error GR010: no such setting, or no value for it.';
