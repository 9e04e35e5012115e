-- The proof: one row for every invariant that is broken in the snapshot of the call.
-- Written from the documents as absolute recounts. It reads no counter to check that counter
-- and calls nothing of the code that maintains them; each rule is local (a stored value against
-- a recount from the stored values next to it), which on an acyclic graph proves the whole.
-- Locks: none. STABLE, so that all rules of all parts read one snapshot.
-- Returns: rule, subject (the row), expected, found. No row: nothing is broken.
-- Execute: server, operator, reader
create or replace function gradient.violations()
returns table (rule text, subject text, expected text, found text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
  select * from gradient.violations_graph()
  union all select * from gradient.violations_counters()
  union all select * from gradient.violations_need()
  union all select * from gradient.violations_queue()
  union all select * from gradient.violations_failures()
  union all select * from gradient.violations_assignments()
  union all select * from gradient.violations_evaluations()
  union all select * from gradient.violations_claims()
  union all
  select 'drift',
    format('drift %s: %s of %s, %s', r.id, r.counter,
      coalesce('derivation ' || r.derivation, 'evaluation ' || r.evaluation, 'nothing'), r.context),
    r.recounted::text, r.stored::text
  from gradient.drift r
$body$;

comment on function gradient.violations() is
'Every broken invariant of the database, from one snapshot; empty when all is well.
rule: which invariant; subject: the row that breaks it; expected: what the documents ask for; found: what is stored.
Reads whole tables (seconds on a large graph), locks nothing, changes nothing. Example: select * from gradient.violations();';
