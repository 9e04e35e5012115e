-- One more piece of a running build's log lies in the object store as log/<attempt>/<chunk>.zst.
-- Sizes in bytes. A piece that is known already (sent again after a lost socket) is answered with
-- what stands.
-- Locks: the attempt's row. Returns: {attempt, chunk_index, end}: where it is stored and how far the
-- log reaches. Errors: GR003; GR001 a piece is missing in between: send it from "end" again.
-- Execute: server
create or replace function graph.append_log(
  p_assignment bigint, p_worker text, p_byte_start bigint, p_byte_len integer, p_line_count integer, p_stored_size integer)
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
as $fn$
declare
  v_attempt bigint;
  v_index integer;
  v_end bigint;
begin
  select a.id into v_attempt
  from gradient.build_attempt a
  join gradient.dispatched_job o on o.id = a.dispatched_job
  where o.id = p_assignment and o.worker_id = p_worker and o.finished_at is null
  for update of a;
  if not found then
    raise exception using errcode = 'GR003',
      message = format('Assignment %s is not a build that is open for worker %s.', p_assignment, p_worker),
      hint = format('select * from gradient.dispatched_job where id = %s;', p_assignment);
  end if;
  select coalesce(max(c.chunk_index) + 1, 0), coalesce(max(c.byte_start + c.byte_len), 0)
  into v_index, v_end
  from gradient.build_log_chunk c where c.build_attempt = v_attempt;
  if p_byte_start > v_end then
    raise exception using errcode = 'GR001',
      message = format('The log of assignment %s ends at byte %s; a piece from byte %s cannot follow.', p_assignment, v_end, p_byte_start),
      hint = format('Send the log again from byte %s.', v_end);
  end if;
  if p_byte_start < v_end then
    select c.chunk_index into v_index from gradient.build_log_chunk c
    where c.build_attempt = v_attempt and c.byte_start <= p_byte_start order by c.byte_start desc limit 1;
    return jsonb_build_object('attempt', v_attempt, 'chunk_index', v_index, 'end', v_end);
  end if;
  insert into gradient.build_log_chunk (build_attempt, chunk_index, byte_start, byte_len, line_count, stored_size)
  values (v_attempt, v_index, p_byte_start, p_byte_len, p_line_count, p_stored_size);
  return jsonb_build_object('attempt', v_attempt, 'chunk_index', v_index, 'end', p_byte_start + p_byte_len);
end
$fn$;

comment on function graph.append_log(bigint, text, bigint, integer, integer, integer) is
  'Records a stored piece of the log of p_assignment: p_byte_start, p_byte_len, p_stored_size in bytes. Returns {attempt, chunk_index, end}. Errors GR003; GR001: a piece is missing before it.';
