-- Refuses NARs that must not be committed, naming the path at fault.
-- Locks: none. Returns: nothing.
-- Errors: GR003 the assignment is closed; GR005 malformed; GR006 the path is not the job's; GR007 the
-- path is backed by another NAR.
create or replace function graph.check_nars(p_nars jsonb)
  returns void
  language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_bad record;
begin
  select n.path, n.assignment, n.reason, n.code into v_bad
  from (
    select n.path, n.assignment,
      case
        when n.path is null or n.path not like '/nix/store/%' or not graph.is_store_name(substr(n.path, 12))
          then 'it is not a store path'
        when n.file_hash is null or n.file_hash !~ '^sha256:[0-9a-df-np-sv-z]{52}$'
          then 'its file hash is not sha256:<52 characters of nix32>'
        when n.nar_hash is null or n.nar_hash !~ '^sha256:[0-9a-df-np-sv-z]{52}$'
          then 'its NAR hash is not sha256:<52 characters of nix32>'
        when coalesce(n.file_size, -1) < 0 or coalesce(n.nar_size, -1) < 0 then 'a size is missing'
        when n.compression is null or n.compression not in ('none', 'xz', 'zstd', 'bzip2', 'gzip')
          then 'its compression is unknown'
        when exists (
            select from jsonb_array_elements_text(coalesce(n."references", '[]')) as r (name)
            where not graph.is_store_name(r.name))
          then 'a reference is not the base name of a store path'
      end as reason,
      'GR005' as code
    from jsonb_to_recordset(p_nars) as n (
      path text, file_hash text, file_size bigint, nar_hash text, nar_size bigint, compression text,
      "references" jsonb, assignment bigint)
    union all
    select n.path, n.assignment, format('assignment %s is closed', n.assignment), 'GR003'
    from jsonb_to_recordset(p_nars) as n (path text, assignment bigint)
    where n.assignment is not null
      and not exists (
        select from gradient.dispatched_job o where o.id = n.assignment and o.finished_at is null)
    union all
    select n.path, n.assignment,
      case o.kind
        when 'Build' then format('it is no output of what %s builds', o.job)
        else format('%s may upload only content-addressed paths: .drv files and sources', o.job)
      end, 'GR006'
    from jsonb_to_recordset(p_nars) as n (path text, assignment bigint, ca_verified boolean)
    join gradient.dispatched_job o on o.id = n.assignment
    where case o.kind
        when 'Build' then not exists (
          select from gradient.derivation_output d
          where d.derivation = o.derivation_build and d.hash = substr(n.path, 12, 32) and d.package = substr(n.path, 45))
        else not coalesce(n.ca_verified, false)
      end
    union all
    select n.path, n.assignment, format('it is backed by a NAR with hash %s', c.nar_hash), 'GR007'
    from jsonb_to_recordset(p_nars) as n (path text, nar_hash text, assignment bigint)
    join gradient.cached_path c on c.hash = substr(n.path, 12, 32)
    where c.nar_hash <> n.nar_hash or c.package <> substr(n.path, 45)
    union all
    select min(n.path), null, 'two NARs of one call differ', 'GR007'
    from jsonb_to_recordset(p_nars) as n (path text, nar_hash text)
    group by substr(n.path, 12, 32)
    having count(distinct (n.path, n.nar_hash)) > 1
  ) as n
  where n.reason is not null
  limit 1;
  if found then
    raise exception using errcode = v_bad.code,
      message = format('%s cannot be committed: %s.', coalesce(v_bad.path, 'A path'), v_bad.reason),
      detail = format('Sent by assignment %s.', coalesce(v_bad.assignment::text, 'none')),
      hint = format('select * from gradient.cached_path where hash = %L;', substr(v_bad.path, 12, 32));
  end if;
end
$fn$;

comment on function graph.check_nars(jsonb) is
  'Refuses NARs with malformed names or hashes (GR005), of a closed assignment (GR003), of paths that are not the job''s (GR006) or that another NAR backs (GR007).';
