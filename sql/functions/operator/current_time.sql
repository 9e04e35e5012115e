-- The clock of every rule. Tests move it: the session setting gradient.fake_now is honoured
-- only while the setting fake_clock is on.
-- Locks: none. Returns: the time.
-- Execute: server, operator, reader
create or replace function gradient.current_time()
  returns timestamptz
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_fake text := current_setting('gradient.fake_now', true);
begin
  if v_fake <> '' and gradient.setting_text('fake_clock') = 'on' then
    return v_fake::timestamptz;
  end if;
  return clock_timestamp();
end
$fn$;

comment on function gradient.current_time() is
  'The time that every rule uses: the wall clock, or gradient.fake_now while the setting fake_clock is on (tests only).';
