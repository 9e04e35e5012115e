-- The turn: one lock above the keys. Taken exclusively as a message's first statement it stands
-- for every key, so that writers whose region is not known beforehand never meet in a deadlock.
-- Locks: advisory (642, 0) exclusive until the transaction ends. Returns: nothing.
-- Order: the turn, evaluation rows, derivation rows by id, keys, cached_path by hash,
-- derivation_build by derivation.
create or replace function graph.take_turn()
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  if graph.turn_held() or gradient.setting_text('turn') <> 'on' then
    return;
  end if;
  perform pg_advisory_xact_lock(642, 0);
  perform set_config('gradient.turn', pg_current_xact_id()::text, true);
end
$fn$;

comment on function graph.take_turn() is
  'Takes the graph writers'' turn exclusively for this transaction: "I hold every key". Call it before any other lock.';
