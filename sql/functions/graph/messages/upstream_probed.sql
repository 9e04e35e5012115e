-- Upstream caches have answered finally for shared builds: what they do not have is built, and so
-- wants its inputs (reference D.3). No answer is no report: the row stays unprobed.
-- Locks: the turn; shared builds by derivation.
-- Returns: {probed: newly answered, probe: ids to ask about next}. Idempotent.
-- Execute: server
create or replace function graph.upstream_probed(p_builds bigint[])
  returns jsonb
  language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $fn$
declare
  v_probed bigint[];
  v_probe bigint[];
begin
  perform graph.take_turn();
  perform graph.lock_shared_builds(null, p_builds);
  perform from gradient.derivation_build b where b.derivation = any (p_builds) order by b.derivation for no key update;
  with moved as (
    update gradient.derivation_build b
    set probed = true
    where b.derivation = any (p_builds) and not b.probed
    returning b.derivation
  )
  select coalesce(array_agg(m.derivation), '{}') into v_probed from moved m;
  v_probe := graph.follow_probe(v_probed, null);
  return jsonb_build_object('probed', cardinality(v_probed), 'probe', to_jsonb(v_probe));
end
$fn$;

comment on function graph.upstream_probed(bigint[]) is
  'Marks p_builds as answered by the upstream caches: what they lack is built and wants its inputs. Returns {probed, probe: ids to ask about next}.';
