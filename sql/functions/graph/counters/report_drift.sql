-- Remembers that a counter was found wrong and has been written anew. Tests fail on any line.
-- Locks: none. Returns: nothing.
create or replace function graph.report_drift(p_counter text, p_ids bigint[], p_stored bigint[], p_recounted bigint[], p_context text)
  returns void
  language plpgsql volatile
  set search_path = pg_catalog, pg_temp
as $fn$
begin
  insert into gradient.drift (at, counter, derivation, stored, recounted, context)
  select gradient.current_time(), p_counter, u.id, u.stored, u.recounted, p_context
  from unnest(p_ids, p_stored, p_recounted) as u (id, stored, recounted);
  raise warning using
    message = format('%s of %s derivations was wrong and has been recounted.', p_counter, cardinality(p_ids)),
    hint = 'select * from gradient.drift order by id desc;';
end
$fn$;

comment on function graph.report_drift(text, bigint[], bigint[], bigint[], text) is
  'Writes lines into gradient.drift for counters that would have gone below zero and were recounted in place.';
