-- scheduler.evaluation_steps() -> text[]
-- The steps of an evaluation job, in the order in which a worker takes them. Their names are those
-- of the wire. All three go to one worker, which therefore needs both fetch and eval.

create function scheduler.evaluation_steps()
  returns text[]
  language sql immutable parallel safe
as $$ select array['fetch_flake', 'evaluate_flake', 'evaluate_derivations'] $$;

comment on function scheduler.evaluation_steps() is
  'The steps of an evaluation job as the wire names them, in their order.';
