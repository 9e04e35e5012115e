-- gradient.build_log_chunks(attempt, from_byte) -> the stored pieces of a log, in order
-- Where the log of an attempt lies in the object store. A reader that follows a running build asks
-- again with the byte after the last one it has.
-- Locks: none.
-- Execute: server, operator, reader

create function gradient.build_log_chunks(p_attempt bigint, p_from_byte bigint default 0)
  returns table (
    chunk_index integer,
    byte_start bigint,
    byte_len integer,
    line_count integer,
    stored_size integer,
    object_key text)
  language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select c.chunk_index, c.byte_start, c.byte_len, c.line_count, c.stored_size,
         'log/' || c.build_attempt || '/' || c.chunk_index || '.zst'
  from gradient.build_log_chunk c
  where c.build_attempt = p_attempt
    and c.byte_start + c.byte_len > p_from_byte
  order by c.chunk_index
$$;

comment on function gradient.build_log_chunks(bigint, bigint) is
  'The pieces of an attempt''s log that reach beyond byte p_from_byte, in order: place and length in bytes of the log, size as stored, key in the object store (compressed with zstd).';
