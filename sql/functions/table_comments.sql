-- What each table is, and each column that its name does not explain. Deployed with the
-- functions, so that a better sentence needs no migration.

-- People and grouping.

comment on table gradient.setting is
  'What an operator may tune: one row a setting, changed with gradient.set(name, value).';
comment on column gradient.setting.value is 'The value in force, as text.';
comment on column gradient.setting.unit is 'What the value counts or how it is written.';

comment on table gradient.outcome_class is
  'How an attempt can end badly, and what follows from it: the one table that decides consequences.';
comment on column gradient.outcome_class.decision is 'What happens to the job next.';
comment on column gradient.outcome_class.charged is
  'Whether the attempt counts against the limit of attempts.';
comment on column gradient.outcome_class.cascades is
  'Whether a lasting failure of this class fails the builds that need this one.';
comment on column gradient.outcome_class.shown is 'The words a person reads.';

comment on table gradient.team is
  'A group that owns workers and grants them to projects. The team named server has the local worker.';
comment on column gradient.team.new_projects_workers is
  'Whether the team''s workers are granted to every new project.';

comment on table gradient.project is
  'What owns tasks, subscribes to caches and registers workers.';
comment on column gradient.project.ssh_private_key_encrypted is
  'Key for fetching private repositories, encrypted with the server''s secret file.';

comment on table gradient.team_project is 'What a team grants to a project.';
comment on column gradient.team_project.workers is
  'Whether the team''s workers serve the project.';

comment on table gradient.cache is
  'A binary cache: a name, a signing key, limits. Its content are the claims in cached_path_signature and its pushed_path rows.';
comment on column gradient.cache.priority is
  'What nix-cache-info tells clients: the lower, the sooner asked.';
comment on column gradient.cache.key_name is 'Name of the signing key, as it stands in front of each signature.';
comment on column gradient.cache.private_key_encrypted is
  'The signing key, encrypted with the server''s secret file.';
comment on column gradient.cache.public is 'Whether the cache is read without a token.';
comment on column gradient.cache.max_storage_bytes is 'Storage the cache may fill, in bytes; null is no limit.';
comment on column gradient.cache.max_nar_size is 'Largest NAR accepted, decompressed, in bytes.';

comment on table gradient.project_cache is
  'A project''s subscription to a cache. A project without one gets no jobs.';
comment on column gradient.project_cache.mode is
  'ReadWrite: inputs come from it and results go to it; ReadOnly and WriteOnly: one of the two.';

comment on table gradient.project_trusted_key is
  'Public keys whose signatures a project trusts: what they signed may back an output.';

comment on table gradient.cache_upstream is
  'Another binary cache that a cache of ours stands in front of.';
comment on column gradient.cache_upstream.mode is 'How we use it; WriteOnly is never asked for paths.';

comment on table gradient.cache_token is
  'A token that reads, or with can_write also fills, one cache. Only its SHA-256 is kept.';

comment on table gradient.task is
  'What a project evaluates again and again: a flake of a repository and a pattern of attributes.';
comment on column gradient.task.revision is 'Branch, tag or commit to evaluate; null is the default branch.';
comment on column gradient.task.wildcard is
  'Attribute patterns, separated by commas; * stands for one name, ! excludes.';
comment on column gradient.task.keep_evaluations is 'Evaluations kept; older ones are collected.';
comment on column gradient.task.concurrency is
  'What a new evaluation does to a running one: abort it hard or soft, run beside it, or be skipped.';
comment on column gradient.task.wait_for_workers is
  'Whether an evaluation that no worker fits waits for ever instead of being aborted after the grace.';
comment on column gradient.task.retry_failed_builds is
  'Whether a new evaluation tries builds again that failed permanently before.';
comment on column gradient.task.allow_import_from_derivation is
  'Whether the evaluator may build what the evaluation imports.';
comment on column gradient.task.eval_timeout_secs is 'Time limit of one evaluation on the worker, in seconds.';
comment on column gradient.task.eval_memory_mb is 'Memory limit of the evaluator, in MiB.';

comment on table gradient.task_trigger is 'What starts evaluations of a task by itself.';
comment on column gradient.task_trigger.config is 'Settings of the trigger''s type, e.g. the interval.';

comment on table gradient.task_flake_input_override is
  'Flake inputs of a task that are taken from elsewhere than its lock file says.';
comment on column gradient.task_flake_input_override.url is
  'Where the input comes from; null locks it anew to the newest of its own URL.';

comment on table gradient.commit is 'A commit of a repository that was evaluated.';

-- Evaluations.

comment on table gradient.evaluation is
  'One reading of a task''s flake at one commit, from queue to verdict. Its counters are folded from evaluation_shared_build_delta.';
comment on column gradient.evaluation.repository is
  'URL to clone, or a /nix/store path for an uploaded source; as the task had it at the start.';
comment on column gradient.evaluation.kind is
  'Normal; InputUpdate tries newer inputs; DrvRecovery makes a lost .drv again.';
comment on column gradient.evaluation.walk_mode is
  'Pruned: the walk stops at what is known; Full: everything is walked again.';
comment on column gradient.evaluation.previous is 'The task''s evaluation before this one.';
comment on column gradient.evaluation.flake_source is 'Store path of the fetched source, once fetched.';
comment on column gradient.evaluation.waiting_reason is
  'Why it waits: an object with a kind (workers, eval_workers, graph_stuck, draining, approval, no_cache, cache_storage_full).';
comment on column gradient.evaluation.concurrent is
  'Whether it may run beside another evaluation of its task.';
comment on column gradient.evaluation.prioritized is 'Whether all its builds are assigned ahead.';
comment on column gradient.evaluation.graph_version is 'Grows whenever what it names changes.';
comment on column gradient.evaluation.named_shared_builds is 'Folded count of shared builds it names.';
comment on column gradient.evaluation.active_shared_builds is
  'Folded count of named builds that are not finished.';
comment on column gradient.evaluation.failed_shared_builds is 'Folded count of named builds that failed.';
comment on column gradient.evaluation.queued_shared_builds is 'Folded count of named builds in status Queued.';
comment on column gradient.evaluation.building_shared_builds is
  'Folded count of named builds in status Building.';

comment on table gradient.evaluation_flake_input_override is
  'The task''s overrides as they stood when the evaluation started.';

comment on table gradient.evaluation_shared_build_delta is
  'Changes of evaluation counters not folded in yet: signed, appended by statement triggers, one row an evaluation and statement.';

comment on table gradient.evaluation_message is
  'What an evaluation has to say. A row of level Error makes its verdict Failed.';
comment on column gradient.evaluation_message.source is
  'Who says it: nix-eval, fetch, worker, scheduler, …';
comment on column gradient.evaluation_message.attribute is 'The attribute it is about, if one.';

comment on table gradient.phase_event is
  'History of phases of evaluations and builds, for timelines; nothing is decided from it.';
comment on column gradient.phase_event.subject is 'Id of the evaluation or of the shared build.';

-- The graph.

comment on table gradient.derivation is
  'One derivation, once, whoever evaluates it: a node of the global graph.';
comment on column gradient.derivation.hash is 'The 32 characters in front of the name of the .drv.';
comment on column gradient.derivation.name is 'Name without .drv; hash-name.drv is the file.';
comment on column gradient.derivation.architecture is
  'System it builds on; empty on a row nobody walked yet; builtin runs anywhere.';
comment on column gradient.derivation.pname is 'Name without version, for history and prediction.';
comment on column gradient.derivation.ifd is 'Whether an evaluation imported from it.';
comment on column gradient.derivation.walked is
  'Whether its own record is complete: outputs, all inputs, sources.';
comment on column gradient.derivation.drv_present is 'Whether the .drv itself is in the cache.';
comment on column gradient.derivation.unwalked_inputs is
  'Counter: direct build inputs whose subtree is not recorded. 0 together with walked and drv_present means known: a walk stops here.';
comment on column gradient.derivation.closure_size is 'Size of all outputs it needs, in bytes, once known.';

comment on table gradient.derivation_dependency is
  'Edge: derivation needs dependency. Both ends exist, edges are only added.';
comment on column gradient.derivation_dependency.kind is
  'Build: an input of the build; Runtime: an output refers to it; Both.';

comment on table gradient.cached_path is
  'A store path whose NAR is in the object store: what backs outputs, .drv files and sources. One row a path, whatever caches claim it.';
comment on column gradient.cached_path.hash is 'The 32 characters of the store path.';
comment on column gradient.cached_path.package is 'The store path''s name after its hash.';
comment on column gradient.cached_path.file_hash is 'sha256:… of the stored, compressed file: its name in the object store.';
comment on column gradient.cached_path."references" is
  'Base names of the paths it refers to, in the order reported.';
comment on column gradient.cached_path.ca is 'Content address, where it has one.';
comment on column gradient.cached_path.confirmed is 'Whether the stored object was seen to exist.';

comment on table gradient.derivation_output is 'One output of a derivation and what backs it.';
comment on column gradient.derivation_output.cached_path is
  'The NAR of ours that backs it; null while there is none.';
comment on column gradient.derivation_output.external_url is
  'The upstream cache that has it, when it is not ours.';
comment on column gradient.derivation_output.external is 'What the upstream''s narinfo said.';

comment on table gradient.derivation_input_source is
  'Plain sources of a derivation: inputs that no derivation makes.';

comment on table gradient.derivation_build is
  'The shared build: the one build of a derivation, for all evaluations that name it. Its id is the derivation''s. Who may start is decided from its flags and counters alone.';
comment on column gradient.derivation_build.cache_available is
  'Whether every output can be fetched from an upstream cache: it is substituted, not built.';
comment on column gradient.derivation_build.probed is
  'Whether the upstreams gave a final answer. Nothing starts before that.';
comment on column gradient.derivation_build.substituted is 'Whether it was finished without a build.';
comment on column gradient.derivation_build.fetchable is
  'Maintained: a worker that needs its outputs can get them, whole runtime closure included.';
comment on column gradient.derivation_build.wanted is
  'Maintained: somebody needs it built or fetched. What is not wanted neither runs nor keeps an evaluation open.';
comment on column gradient.derivation_build.blocking_deps is
  'Counter: build inputs that are not fetchable yet.';
comment on column gradient.derivation_build.missing_runtime_deps is
  'Counter: runtime inputs without a complete closure.';
comment on column gradient.derivation_build.missing_sources is
  'Counter: plain sources without a stored NAR.';
comment on column gradient.derivation_build.attempt is 'Charged failed attempts so far.';
comment on column gradient.derivation_build.timeout_secs is
  'Total time limit in seconds as the derivation asks; null takes the setting, 0 is none.';
comment on column gradient.derivation_build.max_silent_secs is
  'Silence limit in seconds as the derivation asks; null takes the setting, 0 is none.';
comment on column gradient.derivation_build.failed_by is
  'The failed attempt this status comes from: its own, or the one of the build it depends on.';
comment on column gradient.derivation_build.retry_at is 'When a transient failure is tried again.';

comment on table gradient.build_job is
  'An evaluation names a shared build: this pair. What only one evaluation names may be aborted with it.';
comment on column gradient.build_job.score is 'Score of the last assignment.';

comment on table gradient.entry_point is
  'An attribute of the flake that an evaluation was asked for, and the derivation it gave.';

comment on table gradient.build_class is
  'A pair of architecture and sorted required features: what a worker must offer. Interned.';

comment on table gradient.ready_build is
  'Exactly the Queued builds, once for each project that may drive them: what assignments and offers read.';
comment on column gradient.ready_build.priority is 'Higher is assigned sooner.';
comment on column gradient.ready_build.offer_generation is
  'Grows whenever the build is queued, returned or rejected, so that sessions offer it again.';

-- Assignments, attempts, logs.

comment on table gradient.server_instance is
  'Every server that ever ran on this database, by name. While it lives it holds the session lock of its lock_key.';

comment on table gradient.dispatched_job is
  'An assignment: a job handed to a worker. At most one open row a job; its id is what the worker''s reports carry.';
comment on column gradient.dispatched_job.job is 'eval:<evaluation> or build:<derivation_build>.';
comment on column gradient.dispatched_job.instance is 'The server whose session has the worker.';
comment on column gradient.dispatched_job.substitute is 'Whether the job fetches from upstream instead of building.';
comment on column gradient.dispatched_job.steps is 'Steps of an evaluation job, in order.';
comment on column gradient.dispatched_job.upload_token_hash is
  'SHA-256 of the token that uploads this job''s paths; it is worth nothing once the row is closed.';
comment on column gradient.dispatched_job.abort_requested_at is 'When the worker was to be told to stop.';
comment on column gradient.dispatched_job.started_at is 'When the builder itself started: a build''s clock.';
comment on column gradient.dispatched_job.outcome is 'How it was closed; null while it is open.';

comment on table gradient.dispatched_job_phase is 'How long each phase of a job took on its worker.';

comment on table gradient.build_attempt is
  'One try at a shared build. The latest is the one with the greatest id.';
comment on column gradient.build_attempt.build_job is 'The evaluation''s name for it that drove this attempt.';
comment on column gradient.build_attempt.failure_message is 'The end of what went wrong, at most 8 KiB.';
comment on column gradient.build_attempt.build_context is 'What the worker measured, as it reported it.';
comment on column gradient.build_attempt.log_truncated_bytes is 'Bytes dropped from the middle of its log.';
comment on column gradient.build_attempt.log_finished is 'Whether its log is complete.';

comment on table gradient.build_log_chunk is
  'One stored piece of an attempt''s log: the object log/<attempt>/<chunk_index>.zst.';
comment on column gradient.build_log_chunk.byte_start is 'Position of its first byte in the whole log.';
comment on column gradient.build_log_chunk.byte_len is 'Length in bytes, uncompressed.';
comment on column gradient.build_log_chunk.stored_size is 'Size of the object in bytes.';

comment on table gradient.build_product is
  'A file that a build announces as worth downloading.';

comment on table gradient.derivation_metric is
  'What real builds cost, for predicting the next one of the same pname and architecture.';

-- The binary cache.

comment on table gradient.nar_object is
  'An object that was uploaded whole and hashed while it arrived. Without a path that uses it, it is collected after a grace.';
comment on column gradient.nar_object.content_hash is
  'Hash for a content address, where the upload was checked for one.';

comment on table gradient.cached_path_signature is
  'A claim: this cache has this path. Served once it is signed, which the first request may do.';
comment on column gradient.cached_path_signature.signature is
  'key:signature as Nix checks it; null until the first narinfo request signs it.';

comment on table gradient.pushed_path is
  'A path that a user pushed into one cache. It backs no output of a derivation.';

-- Workers.

comment on table gradient.worker_registration is
  'A project worker: an id and the SHA-256 of its token, and the kinds of job it may take.';
comment on table gradient.team_worker is
  'A worker of a team, with one token for every project that the team grants it to.';

comment on table gradient.worker_connection is
  'The pool: what each connected worker can do. A lost connection keeps its row until the grace has passed.';
comment on column gradient.worker_connection.connection is
  'Number of this connection; what comes from an older one is stale.';
comment on column gradient.worker_connection.projects is 'Ids of the projects it serves.';
comment on column gradient.worker_connection.zone is 'Where it stands, for cluster jobs that need a fast network.';
comment on column gradient.worker_connection.endpoint is 'Where other members of a cluster reach it.';

comment on table gradient.worker_seen is
  'When each worker was last heard of, and its load. Unlogged: written every few seconds, empty after a crash.';
comment on table gradient.instance_seen is 'When each server last renewed itself. Unlogged.';
comment on table gradient.pass_run is
  'When each server''s passes last ran, how long they took and how they failed. Unlogged.';
comment on table gradient.offer_score is
  'What workers answered about offers: how much of the inputs they lack. Unlogged.';
comment on column gradient.offer_score.missing_count is 'Input paths the worker lacks.';
comment on column gradient.offer_score.missing_nar_size is 'Bytes it would have to fetch.';
comment on column gradient.offer_score.outputs_present is 'Whether it has the outputs already.';

-- Clusters.

comment on table gradient.cluster_job is 'Several jobs that must run at the same time.';
comment on column gradient.cluster_job.same_zone is 'Whether all members must run in one zone.';
comment on column gradient.cluster_job.retry_budget is 'Attempts that may still follow.';
comment on table gradient.cluster_member is 'One evaluation or build of a cluster job.';
comment on column gradient.cluster_member.pin is 'The only worker it may run on, if one.';
comment on table gradient.cluster_attempt is 'One common start of a cluster job.';

-- Deliveries, proof.

comment on table gradient.pending_delivery is
  'Effects that leave the database, written with their cause and delivered at least once.';
comment on column gradient.pending_delivery.key is 'What makes two unsettled deliveries the same one.';

comment on table gradient.drift is
  'Counters that were found wrong and put right in place. Any row is a defect worth reporting.';
comment on column gradient.drift.stored is 'The value found.';
comment on column gradient.drift.recounted is 'The value it was set to.';
