-- Whether a text is the base name of a store path: 32 characters of hash, a dash, a name.
-- Locks: none. A predicate over one value: no SET clause, so that the planner inlines it. The dash is
-- looked for instead of counted in the pattern: a bounded repeat costs a hundred times as much.
create or replace function graph.is_store_name(p_name text)
  returns boolean
  language sql immutable parallel safe
return coalesce(
  strpos(p_name, '-') = 33 and length(p_name) between 34 and 244
  and p_name ~ '^[0-9a-df-np-sv-z]+-[a-zA-Z0-9+._?=-]+$', false);

comment on function graph.is_store_name is
  'Whether p_name is the base name of a store path, <32 characters of hash>-<name of up to 211>.';
