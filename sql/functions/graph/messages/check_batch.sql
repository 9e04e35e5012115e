-- Refuses a batch whose content cannot be recorded, naming the path at fault.
-- Locks: none. Returns: nothing. Errors: GR005.
create or replace function graph.check_batch(p_batch jsonb)
  returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_bad record;
begin
  select c.kind, c.value, c.drv into v_bad
  from (
    select 'derivation' as kind, d.drv as value, d.drv, d.drv ~ '^[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,207}\.drv$' as good
    from jsonb_to_recordset(p_batch -> 'derivations') as d (drv text)
    union all
    select 'input derivation', i.value, d.drv, i.value ~ '^[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,207}\.drv$'
    from jsonb_to_recordset(p_batch -> 'derivations') as d (drv text, dependencies text[])
    cross join lateral unnest(d.dependencies) as i (value)
    union all
    select 'output path', o.path, d.drv, o.path ~ '^/nix/store/[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,211}$'
    from jsonb_to_recordset(p_batch -> 'derivations') as d (drv text, outputs jsonb)
    cross join lateral jsonb_to_recordset(d.outputs) as o (path text)
    union all
    select 'input source', s.value, d.drv, s.value ~ '^/nix/store/[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,211}$'
    from jsonb_to_recordset(p_batch -> 'derivations') as d (drv text, input_sources text[])
    cross join lateral unnest(d.input_sources) as s (value)
    union all
    select 'entry point', p.drv, p.drv, p.drv ~ '^[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,207}\.drv$'
    from jsonb_to_recordset(p_batch -> 'entry_points') as p (drv text)
  ) as c
  where not coalesce(c.good, false)
  limit 1;
  if found then
    raise exception using errcode = 'GR005',
      message = format('Malformed %s "%s" in a batch of evaluation %s.', v_bad.kind, coalesce(v_bad.value, 'null'), p_batch ->> 'evaluation'),
      detail = format('Named by the derivation %s.', coalesce(v_bad.drv, 'null')),
      hint = 'The batch is refused whole and its evaluation fails; look at the flake''s derivation.';
  end if;
end
$fn$;

comment on function graph.check_batch(jsonb) is
  'Refuses a batch with a malformed .drv name or store path. Error GR005 names the path.';
