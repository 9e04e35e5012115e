-- scheduler.work_waits() -> whether anything could be handed out at all
-- What a server asks on its tick before it lets its sessions look: an idle system answers from two
-- small indexes, however many workers are connected.
-- Locks: none.
-- Execute: server

create function scheduler.work_waits()
  returns boolean
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (select from gradient.ready_build)
      or exists (
           select from gradient.evaluation e
           where e.status in ('Queued', 'Fetching', 'EvaluatingFlake', 'EvaluatingDerivation', 'Building', 'Waiting')
             and e.status = 'Queued');
end
$$;

comment on function scheduler.work_waits() is
  'Whether a build is ready or an evaluation is queued, for any worker at all.';
