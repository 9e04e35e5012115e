-- scheduler.offer_scores(worker, scores)
-- Keeps what a worker answered about offers. An answer about a job that is not on the ready list
-- any more is dropped, and so are the worker's earlier answers about such jobs; the table
-- is unlogged and never larger than what is offered.
-- Locks: offer_score rows of the worker.
-- Execute: server

create function scheduler.offer_scores(p_worker text, p_scores jsonb)
  returns void
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  -- A worker may say any number; more than this is as good as this.
  c_most constant numeric := 2147483647;
begin
  if jsonb_typeof(p_scores) is distinct from 'array' then
    raise exception using errcode = 'GR005',
      message = format('The scores of worker %s are not an array.', p_worker);
  end if;

  delete from gradient.offer_score s
  where s.worker_id = p_worker
    and s.job like 'build:%'
    and not exists (
      select from gradient.ready_build r
      where r.derivation_build = substr(s.job, 7)::bigint);

  insert into gradient.offer_score as s
    (worker_id, job, missing_count, missing_nar_size, outputs_present, at)
  select distinct on (n.job)
         p_worker, n.job, least(coalesce(n.missing_count, 0), c_most)::integer,
         case when n.missing_nar_size is not null
           then least(n.missing_nar_size, c_most * c_most)::bigint end,
         coalesce(n.outputs_present, false), gradient.current_time()
  from jsonb_to_recordset(p_scores) as n(
    job text, missing_count numeric, missing_nar_size numeric, outputs_present boolean)
  where n.job ~ '^build:[0-9]{1,18}$'
    and exists (
      select from gradient.ready_build r
      where r.derivation_build = substr(n.job, 7)::bigint)
  order by n.job
  on conflict (worker_id, job) do update
  set missing_count = excluded.missing_count,
      missing_nar_size = excluded.missing_nar_size,
      outputs_present = excluded.outputs_present,
      at = excluded.at;
end
$$;

comment on function scheduler.offer_scores(text, jsonb) is
  'Keeps a worker''s scores of builds it was offered: an array of the wire''s JobScore, sizes in bytes. Scores of jobs that are not ready are dropped. Raises GR005 when it is not an array.';
