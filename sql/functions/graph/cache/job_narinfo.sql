-- What a job may fetch: every backed path. Presence is enough, its closure is not asked: a job
-- fetches the .drv files and sources of a graph that is still being built.
-- Locks: none.
-- Returns: the path as graph.narinfo describes it, without a signature; or null.
-- Execute: server
create or replace function graph.job_narinfo(p_hash text)
  returns jsonb
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_path jsonb;
begin
  select jsonb_build_object(
           'path', '/nix/store/' || p.hash || '-' || p.package,
           'file_hash', p.file_hash, 'file_size', p.file_size,
           'nar_hash', p.nar_hash, 'nar_size', p.nar_size,
           'compression', p.compression, 'references', to_jsonb(p."references"),
           'deriver', p.deriver, 'ca', p.ca, 'signature', null)
  into v_path
  from gradient.cached_path p
  join gradient.nar_object n on n.file_hash = p.file_hash
  where p.hash = p_hash;
  return v_path;
end
$fn$;

comment on function graph.job_narinfo(text) is
  'The backed path of a store hash for the worker of a job, as graph.narinfo describes it; null when nothing is backed there. Sizes in bytes.';
