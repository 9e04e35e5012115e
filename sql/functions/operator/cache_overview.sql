-- gradient.cache_overview
-- Every binary cache, what lies in it and who uses it; without its private key.

create view gradient.cache_overview as
select
  c.id,
  c.name,
  c.display_name,
  c.public,
  c.active,
  c.priority,
  c.key_name,
  c.public_key,
  n.paths,
  n.size_bytes,
  c.max_storage_bytes,
  c.max_nar_size,
  array(
    select p.name from gradient.project_cache s
    join gradient.project p on p.id = s.project
    where s.cache = c.id
    order by p.name) as projects,
  (select count(*) from gradient.cache_token k where k.cache = c.id) as tokens,
  c.created_at
from gradient.cache c
cross join lateral (
  select count(*) as paths, coalesce(sum(x.file_size), 0)::bigint as size_bytes
  from (
    select s.cached_path, p.file_size
    from gradient.cached_path_signature s
    join gradient.cached_path p on p.id = s.cached_path
    where s.cache = c.id
    union all
    select null, u.file_size
    from gradient.pushed_path u
    where u.cache = c.id
  ) x
) n;

comment on view gradient.cache_overview is 'Binary caches for people: public key, contents, users. It shows no secret.';
comment on column gradient.cache_overview.paths is 'Store paths it claims, those pushed by users included.';
comment on column gradient.cache_overview.size_bytes is 'Size of the stored files of those paths; files are shared with other caches.';
comment on column gradient.cache_overview.projects is 'Projects subscribed to it.';
