-- Refuses paths of a batch that cannot be recorded, naming the first at fault and what names it.
-- Locks: none. Returns: nothing. Errors: GR005.
create or replace function graph.check_batch_paths(p_kind text, p_paths text[], p_named_by text[])
  returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_bad text;
begin
  select coalesce(d.path, 'null') into v_bad
  from (select distinct unnest(p_paths)) as d (path)
  where not case
      when d.path is null then false
      when p_kind in ('output path', 'input source') then d.path like '/nix/store/%' and graph.is_store_name(substr(d.path, 12))
      else d.path like '%.drv' and graph.is_store_name(d.path) and length(d.path) > 37
    end
  order by 1
  limit 1;
  if found then
    raise exception using errcode = 'GR005',
      message = format('Malformed %s "%s".', p_kind, v_bad),
      detail = (
        select format('Named by %s.', coalesce(n.named_by, 'null'))
        from unnest(p_paths, p_named_by) as n (path, named_by)
        where coalesce(n.path, 'null') = v_bad
        limit 1),
      hint = 'The batch is refused whole and its evaluation fails: look at that derivation of the flake.';
  end if;
end
$fn$;

comment on function graph.check_batch_paths(text, text[], text[]) is
  'Refuses malformed names or store paths of a batch. p_kind: derivation, input derivation, entry point, output path or input source; p_named_by: what names each path. Error GR005 names the first.';
