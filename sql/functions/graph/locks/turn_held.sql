-- Whether this transaction holds the turn. The transaction's id is part of the mark, so that a
-- mark set by hand, or left by an earlier transaction, is worth nothing.
-- Locks: none.
create or replace function graph.turn_held()
  returns boolean
  language sql stable
as $fn$
  select coalesce(current_setting('gradient.turn', true) = pg_current_xact_id_if_assigned()::text, false)
$fn$;

comment on function graph.turn_held() is
  'Whether this transaction holds the graph writers'' turn, and with it every key.';
