-- The tables and types of the whole domain. No function bodies, no triggers, no
-- grants, no comments: those are deployed with sql/functions.

-- People and grouping ---------------------------------------------------------

create type gradient.subscription_mode as enum ('ReadWrite', 'ReadOnly', 'WriteOnly');
create type gradient.concurrency_policy as enum ('HardAbort', 'SoftAbort', 'All', 'Skip');
create type gradient.evaluation_status as enum (
  'Queued', 'EvaluatingFlake', 'EvaluatingDerivation', 'Building', 'Waiting',
  'Completed', 'Failed', 'Aborted', 'Fetching');
create type gradient.evaluation_kind as enum ('Normal', 'InputUpdate', 'DrvRecovery');
create type gradient.walk_mode as enum ('Pruned', 'Full');
create type gradient.message_level as enum ('Error', 'Warning', 'Notice');
create type gradient.edge_kind as enum ('Build', 'Runtime', 'Both');
create type gradient.build_status as enum (
  'Created', 'Queued', 'Building', 'Completed', 'FailedPermanent', 'Aborted',
  'DependencyFailed', 'Substituted', 'FailedTransient', 'FailedTimeout', 'Skipped');
create type gradient.attempt_outcome as enum ('Running', 'Built', 'Substituted', 'Failed', 'Aborted');
create type gradient.assignment_kind as enum ('Evaluation', 'Build');
create type gradient.assignment_outcome as enum ('Completed', 'Failed', 'Abandoned');
create type gradient.failure_decision as enum (
  'Retry', 'Permanent', 'Timeout', 'Aborted', 'Return', 'SubstituteMiss', 'Upload');
create type gradient.delivery_kind as enum ('LogFinalize', 'Event', 'Webhook');
create type gradient.cluster_status as enum ('Queued', 'Running', 'Completed', 'Failed', 'Aborted');
create type gradient.cluster_outcome as enum ('Succeeded', 'Failed', 'PrepareFailed', 'Aborted');

create table gradient.setting (
  name text primary key,
  value text not null,
  default_value text not null,
  unit text not null,
  description text not null
);

create table gradient.outcome_class (
  name text primary key,
  decision gradient.failure_decision not null,
  charged boolean not null,
  cascades boolean not null,
  shown text not null,
  description text not null
);

create table gradient.team (
  id bigint generated always as identity primary key,
  name text not null unique check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  display_name text not null,
  new_projects_workers boolean not null default false,
  created_at timestamptz not null
);

create table gradient.project (
  id bigint generated always as identity primary key,
  name text not null unique check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  display_name text not null,
  public boolean not null default false,
  ssh_public_key text,
  ssh_private_key_encrypted bytea,
  created_at timestamptz not null
);

create table gradient.team_project (
  team bigint not null references gradient.team on delete cascade,
  project bigint not null references gradient.project on delete cascade,
  workers boolean not null default false,
  primary key (team, project)
);
create index team_project_project on gradient.team_project (project);

create table gradient.cache (
  id bigint generated always as identity primary key,
  name text not null unique check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  display_name text not null,
  active boolean not null default true,
  priority integer not null default 40,
  key_name text not null,
  public_key text not null,
  private_key_encrypted bytea not null,
  public boolean not null default false,
  max_storage_bytes bigint check (max_storage_bytes >= 0),
  max_nar_size bigint not null default 17179869184 check (max_nar_size > 0),
  created_at timestamptz not null
);

create table gradient.project_cache (
  project bigint not null references gradient.project on delete cascade,
  cache bigint not null references gradient.cache on delete cascade,
  mode gradient.subscription_mode not null default 'ReadWrite',
  primary key (project, cache)
);
create index project_cache_cache on gradient.project_cache (cache);

create table gradient.project_trusted_key (
  project bigint not null references gradient.project on delete cascade,
  public_key text not null,
  primary key (project, public_key)
);

create table gradient.cache_upstream (
  id bigint generated always as identity primary key,
  cache bigint not null references gradient.cache on delete cascade,
  display_name text not null,
  url text not null,
  public_key text not null,
  mode gradient.subscription_mode not null default 'ReadOnly',
  active boolean not null default true,
  unique (cache, url)
);

create table gradient.cache_token (
  id bigint generated always as identity primary key,
  cache bigint not null references gradient.cache on delete cascade,
  name text not null,
  token_hash bytea not null unique,
  can_write boolean not null default false,
  created_at timestamptz not null,
  unique (cache, name)
);

create table gradient.task (
  id bigint generated always as identity primary key,
  project bigint not null references gradient.project on delete cascade,
  name text not null check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  display_name text not null,
  active boolean not null default true,
  repository text not null,
  revision text,
  wildcard text not null default 'packages.x86_64-linux.*',
  keep_evaluations integer not null default 30 check (keep_evaluations > 0),
  concurrency gradient.concurrency_policy not null default 'SoftAbort',
  wait_for_workers boolean not null default false,
  retry_failed_builds boolean not null default true,
  allow_import_from_derivation boolean not null default false,
  eval_timeout_secs integer not null default 3600 check (eval_timeout_secs > 0),
  eval_memory_mb integer not null default 8192 check (eval_memory_mb > 0),
  created_at timestamptz not null,
  unique (project, name)
);

create table gradient.task_trigger (
  id bigint generated always as identity primary key,
  task bigint not null references gradient.task on delete cascade,
  trigger_type text not null check (trigger_type in ('Polling', 'Push', 'PullRequest', 'Time')),
  config jsonb not null default '{}',
  active boolean not null default true,
  last_fired_at timestamptz,
  created_at timestamptz not null
);
create index task_trigger_task on gradient.task_trigger (task);

create table gradient.task_flake_input_override (
  task bigint not null references gradient.task on delete cascade,
  input_name text not null,
  url text,
  primary key (task, input_name)
);

create table gradient.commit (
  id bigint generated always as identity primary key,
  hash text not null unique check (hash ~ '^[0-9a-f]{40,64}$'),
  message text not null default '',
  author_name text
);

-- Evaluations -----------------------------------------------------------------

create table gradient.evaluation (
  id bigint generated always as identity primary key,
  task bigint not null references gradient.task on delete cascade,
  repository text not null,
  revision text,
  commit bigint references gradient.commit on delete set null,
  wildcard text not null,
  status gradient.evaluation_status not null,
  kind gradient.evaluation_kind not null default 'Normal',
  walk_mode gradient.walk_mode not null default 'Pruned',
  previous bigint references gradient.evaluation on delete set null,
  flake_source text,
  waiting_reason jsonb,
  trigger bigint references gradient.task_trigger on delete set null,
  concurrent boolean not null default false,
  prioritized boolean not null default false,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  fetch_started_at timestamptz,
  eval_flake_started_at timestamptz,
  eval_drv_started_at timestamptz,
  building_started_at timestamptz,
  finished_at timestamptz,
  graph_version bigint not null default 0,
  named_shared_builds integer not null default 0,
  active_shared_builds integer not null default 0,
  failed_shared_builds integer not null default 0,
  queued_shared_builds integer not null default 0,
  building_shared_builds integer not null default 0,
  constraint waiting_has_a_reason check ((status = 'Waiting') = (waiting_reason is not null)),
  constraint finished_when_terminal check ((status in ('Completed', 'Failed', 'Aborted')) = (finished_at is not null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index evaluation_task on gradient.evaluation (task, id);
create index evaluation_previous on gradient.evaluation (previous);
create index evaluation_commit on gradient.evaluation (commit);
create index evaluation_trigger on gradient.evaluation (trigger);
create index evaluation_in_flight on gradient.evaluation (id)
  where status in ('Queued', 'Fetching', 'EvaluatingFlake', 'EvaluatingDerivation', 'Building', 'Waiting');
create unique index evaluation_one_active_per_task on gradient.evaluation (task)
  where status in ('Queued', 'Fetching', 'EvaluatingFlake', 'EvaluatingDerivation', 'Building', 'Waiting')
    and not concurrent;

create table gradient.evaluation_flake_input_override (
  evaluation bigint not null references gradient.evaluation on delete cascade,
  input_name text not null,
  url text,
  primary key (evaluation, input_name)
);

create table gradient.evaluation_shared_build_delta (
  id bigint generated always as identity primary key,
  evaluation bigint not null,
  named integer not null,
  active integer not null,
  failed integer not null,
  queued integer not null,
  building integer not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index evaluation_shared_build_delta_evaluation on gradient.evaluation_shared_build_delta (evaluation);

create table gradient.evaluation_message (
  id bigint generated always as identity primary key,
  evaluation bigint not null references gradient.evaluation on delete cascade,
  level gradient.message_level not null,
  message text not null,
  source text not null,
  attribute text,
  created_at timestamptz not null
);
create index evaluation_message_evaluation on gradient.evaluation_message (evaluation);

create table gradient.phase_event (
  id bigint generated always as identity primary key,
  subject_kind gradient.assignment_kind not null,
  subject bigint not null,
  phase text not null,
  at timestamptz not null,
  worker_id text,
  detail jsonb
);
create index phase_event_subject on gradient.phase_event (subject_kind, subject);

-- The graph -------------------------------------------------------------------

create table gradient.derivation (
  id bigint generated always as identity primary key,
  hash text not null check (hash ~ '^[0-9a-df-np-sv-z]{32}$'),
  name text not null check (length(name) <= 207 and name ~ '^[a-zA-Z0-9+._?=-]+$'),
  architecture text not null default '',
  required_features text[] not null default '{}',
  pname text,
  prefer_local_build boolean not null default false,
  is_fixed_output boolean not null default false,
  allow_substitutes boolean not null default true,
  ifd boolean not null default false,
  walked boolean not null default false,
  drv_present boolean not null default false,
  unwalked_inputs integer not null default 0,
  closure_size bigint,
  created_at timestamptz not null,
  unique (hash, name)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create table gradient.derivation_dependency (
  derivation bigint not null references gradient.derivation on delete cascade,
  dependency bigint not null references gradient.derivation on delete cascade,
  kind gradient.edge_kind not null,
  primary key (derivation, dependency)
);
create index derivation_dependency_dependency on gradient.derivation_dependency (dependency) include (derivation, kind);

create table gradient.cached_path (
  id bigint generated always as identity primary key,
  hash text not null unique check (hash ~ '^[0-9a-df-np-sv-z]{32}$'),
  package text not null,
  file_hash text not null,
  file_size bigint not null check (file_size >= 0),
  nar_hash text not null,
  nar_size bigint not null check (nar_size >= 0),
  compression text not null check (compression in ('none', 'xz', 'zstd', 'bzip2', 'gzip')),
  "references" text[] not null,
  deriver text,
  ca text,
  confirmed boolean not null default true,
  created_at timestamptz not null
);
create index cached_path_file_hash on gradient.cached_path (file_hash);
create index cached_path_references on gradient.cached_path using gin ("references") with (fastupdate = off);

create table gradient.derivation_output (
  id bigint generated always as identity primary key,
  derivation bigint not null references gradient.derivation on delete cascade,
  name text not null,
  hash text not null check (hash ~ '^[0-9a-df-np-sv-z]{32}$'),
  package text not null,
  cached_path bigint references gradient.cached_path on delete set null,
  nar_size bigint,
  external_url text,
  external jsonb,
  unique (derivation, name)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index derivation_output_hash on gradient.derivation_output (hash);
create index derivation_output_cached_path on gradient.derivation_output (cached_path);

create table gradient.derivation_input_source (
  derivation bigint not null references gradient.derivation on delete cascade,
  hash text not null check (hash ~ '^[0-9a-df-np-sv-z]{32}$'),
  package text not null,
  primary key (derivation, hash)
);
create index derivation_input_source_hash on gradient.derivation_input_source (hash) include (derivation);

create table gradient.derivation_build (
  derivation bigint primary key references gradient.derivation on delete cascade,
  status gradient.build_status not null,
  cache_available boolean not null default false,
  probed boolean not null default false,
  substituted boolean not null default false,
  fetchable boolean not null default false,
  wanted boolean not null default false,
  prioritized boolean not null default false,
  blocking_deps integer not null default 0,
  missing_runtime_deps integer not null default 0,
  missing_sources integer not null default 0,
  attempt integer not null default 0,
  timeout_secs bigint check (timeout_secs >= 0),
  max_silent_secs bigint check (max_silent_secs >= 0),
  failed_by bigint,
  retry_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  queued_at timestamptz,
  ready_at timestamptz,
  dispatched_at timestamptz
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02);
create index derivation_build_retry on gradient.derivation_build (retry_at) where retry_at is not null;
create index derivation_build_building on gradient.derivation_build (derivation) where status = 'Building';
create index derivation_build_failed_by on gradient.derivation_build (failed_by) where failed_by is not null;

create table gradient.build_job (
  id bigint generated always as identity primary key,
  evaluation bigint not null references gradient.evaluation on delete cascade,
  derivation_build bigint not null references gradient.derivation_build on delete cascade,
  score double precision,
  aborted boolean not null default false,
  created_at timestamptz not null,
  unique (evaluation, derivation_build)
);
create index build_job_derivation_build on gradient.build_job (derivation_build) include (evaluation);

create table gradient.entry_point (
  id bigint generated always as identity primary key,
  evaluation bigint not null references gradient.evaluation on delete cascade,
  derivation bigint not null references gradient.derivation on delete cascade,
  attribute text not null,
  created_at timestamptz not null,
  unique (evaluation, attribute)
);
create index entry_point_derivation on gradient.entry_point (derivation) include (evaluation);

create table gradient.build_class (
  id integer generated always as identity primary key,
  architecture text not null,
  required_features text[] not null,
  unique (architecture, required_features)
);

create table gradient.ready_build (
  derivation_build bigint not null references gradient.derivation_build on delete cascade,
  project bigint not null references gradient.project on delete cascade,
  class integer not null references gradient.build_class,
  priority integer not null default 0,
  queued_at timestamptz not null,
  offer_generation bigint not null,
  primary key (derivation_build, project)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index ready_build_best on gradient.ready_build (class, project, priority desc, queued_at, derivation_build);
create sequence gradient.offer_generation;

-- Assignments, attempts, logs -------------------------------------------------

create table gradient.server_instance (
  name text primary key,
  lock_key integer generated always as identity unique,
  version text not null,
  address text not null,
  started_at timestamptz not null,
  draining boolean not null default false
);

create table gradient.dispatched_job (
  id bigint generated always as identity primary key,
  kind gradient.assignment_kind not null,
  job text not null,
  evaluation bigint references gradient.evaluation on delete set null,
  derivation_build bigint references gradient.derivation_build on delete set null,
  project bigint not null references gradient.project on delete cascade,
  worker_id text not null,
  instance text not null,
  substitute boolean not null default false,
  steps text[],
  upload_token_hash bytea,
  score double precision,
  score_breakdown jsonb,
  abort_requested_at timestamptz,
  queued_at timestamptz not null,
  dispatched_at timestamptz not null,
  started_at timestamptz,
  finished_at timestamptz,
  outcome gradient.assignment_outcome,
  outcome_class text references gradient.outcome_class,
  constraint closed_has_an_outcome check ((finished_at is null) = (outcome is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create unique index dispatched_job_one_open on gradient.dispatched_job (job) where finished_at is null;
create index dispatched_job_open_worker on gradient.dispatched_job (worker_id) where finished_at is null;
create index dispatched_job_open_instance on gradient.dispatched_job (instance) where finished_at is null;
create index dispatched_job_evaluation on gradient.dispatched_job (evaluation);
create index dispatched_job_derivation_build on gradient.dispatched_job (derivation_build);
create index dispatched_job_project on gradient.dispatched_job (project);

create table gradient.dispatched_job_phase (
  dispatched_job bigint not null references gradient.dispatched_job on delete cascade,
  phase text not null,
  started_at timestamptz not null,
  milliseconds bigint,
  primary key (dispatched_job, phase)
);

create table gradient.build_attempt (
  id bigint generated always as identity primary key,
  build_job bigint references gradient.build_job on delete set null,
  derivation_build bigint not null references gradient.derivation_build on delete cascade,
  dispatched_job bigint references gradient.dispatched_job on delete set null,
  substitute boolean not null default false,
  outcome gradient.attempt_outcome not null,
  outcome_class text references gradient.outcome_class,
  failure_message text,
  build_context jsonb not null default '{}',
  build_started_at timestamptz,
  build_finished_at timestamptz,
  created_at timestamptz not null,
  log_truncated_bytes bigint not null default 0,
  log_finished boolean not null default false
);
alter table gradient.derivation_build
  add foreign key (failed_by) references gradient.build_attempt on delete set null;
create index build_attempt_derivation_build on gradient.build_attempt (derivation_build, id);
create index build_attempt_build_job on gradient.build_attempt (build_job);
create index build_attempt_dispatched_job on gradient.build_attempt (dispatched_job);

create table gradient.build_log_chunk (
  build_attempt bigint not null references gradient.build_attempt on delete cascade,
  chunk_index integer not null,
  byte_start bigint not null,
  byte_len integer not null,
  line_count integer not null,
  stored_size integer not null,
  primary key (build_attempt, chunk_index)
);

create table gradient.build_product (
  id bigint generated always as identity primary key,
  derivation_output bigint not null references gradient.derivation_output on delete cascade,
  file_type text not null,
  subtype text not null,
  name text not null,
  path text not null,
  size bigint
);
create index build_product_derivation_output on gradient.build_product (derivation_output);

create table gradient.derivation_metric (
  id bigint generated always as identity primary key,
  derivation bigint not null references gradient.derivation on delete cascade,
  pname text not null,
  architecture text not null,
  build_time_ms bigint not null,
  peak_ram_mb bigint,
  cpu_time_ms bigint,
  output_bytes bigint,
  oom_killed boolean not null default false,
  worker_id text not null,
  created_at timestamptz not null
);
create index derivation_metric_derivation on gradient.derivation_metric (derivation);
create index derivation_metric_history on gradient.derivation_metric (pname, architecture, id);

-- The binary cache ------------------------------------------------------------

create table gradient.nar_object (
  file_hash text primary key,
  file_size bigint not null check (file_size >= 0),
  nar_hash text not null,
  nar_size bigint not null check (nar_size >= 0),
  compression text not null check (compression in ('none', 'xz', 'zstd', 'bzip2', 'gzip')),
  content_hash text,
  created_at timestamptz not null
);
create index nar_object_created_at on gradient.nar_object (created_at);

create table gradient.cached_path_signature (
  cached_path bigint not null references gradient.cached_path on delete cascade,
  cache bigint not null references gradient.cache on delete cascade,
  signature text,
  created_at timestamptz not null,
  primary key (cached_path, cache)
);
create index cached_path_signature_cache on gradient.cached_path_signature (cache);

create table gradient.pushed_path (
  cache bigint not null references gradient.cache on delete cascade,
  hash text not null check (hash ~ '^[0-9a-df-np-sv-z]{32}$'),
  package text not null,
  file_hash text not null,
  file_size bigint not null,
  nar_hash text not null,
  nar_size bigint not null,
  compression text not null,
  "references" text[] not null,
  deriver text,
  ca text,
  signature text,
  created_at timestamptz not null,
  primary key (cache, hash)
);
create index pushed_path_file_hash on gradient.pushed_path (file_hash);

-- Workers ---------------------------------------------------------------------

create table gradient.worker_registration (
  id bigint generated always as identity primary key,
  project bigint not null references gradient.project on delete cascade,
  worker_id text not null check (worker_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
  token_hash bytea not null,
  display_name text not null,
  active boolean not null default true,
  enable_fetch boolean not null default true,
  enable_eval boolean not null default true,
  enable_build boolean not null default true,
  created_at timestamptz not null,
  unique (project, worker_id)
);
create index worker_registration_worker_id on gradient.worker_registration (worker_id);

create table gradient.team_worker (
  id bigint generated always as identity primary key,
  team bigint not null references gradient.team on delete cascade,
  worker_id text not null unique check (worker_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
  token_hash bytea not null,
  display_name text not null,
  enabled boolean not null default true,
  enable_fetch boolean not null default true,
  enable_eval boolean not null default true,
  enable_build boolean not null default true,
  created_at timestamptz not null
);
create index team_worker_team on gradient.team_worker (team);

create table gradient.worker_connection (
  worker_id text primary key,
  connection bigint generated always as identity unique,
  instance text not null,
  projects bigint[] not null,
  can_fetch boolean not null,
  can_eval boolean not null,
  can_build boolean not null,
  architectures text[] not null,
  system_features text[] not null,
  build_slots integer not null check (build_slots >= 0),
  eval_slots integer not null check (eval_slots >= 0),
  cpu_count integer,
  ram_total_mb bigint,
  zone text,
  endpoint text,
  draining boolean not null default false,
  version text not null,
  connected_at timestamptz not null,
  disconnected_at timestamptz
) with (fillfactor = 70);

create unlogged table gradient.worker_seen (
  worker_id text primary key,
  last_seen timestamptz not null,
  metrics jsonb not null default '{}'
);

create unlogged table gradient.instance_seen (
  instance text primary key,
  last_seen timestamptz not null
);

create unlogged table gradient.pass_run (
  instance text not null,
  pass text not null,
  last_started_at timestamptz,
  last_finished_at timestamptz,
  milliseconds double precision,
  runs bigint not null default 0,
  errors bigint not null default 0,
  last_error text,
  next_run_at timestamptz,
  primary key (instance, pass)
);

create unlogged table gradient.offer_score (
  worker_id text not null,
  job text not null,
  missing_count integer not null,
  missing_nar_size bigint,
  outputs_present boolean not null default false,
  at timestamptz not null,
  primary key (worker_id, job)
);

-- Clusters --------------------------------------------------------------------

create table gradient.cluster_job (
  id bigint generated always as identity primary key,
  status gradient.cluster_status not null,
  same_zone boolean not null default false,
  attempts integer not null default 0,
  retry_budget integer not null default 0,
  created_at timestamptz not null,
  updated_at timestamptz not null
);

create table gradient.cluster_member (
  id bigint generated always as identity primary key,
  cluster_job bigint not null references gradient.cluster_job on delete cascade,
  evaluation bigint references gradient.evaluation on delete cascade,
  derivation_build bigint references gradient.derivation_build on delete cascade,
  role text not null,
  is_primary boolean not null default false,
  pin text,
  constraint one_kind_of_member check ((evaluation is null) <> (derivation_build is null))
);
create index cluster_member_cluster_job on gradient.cluster_member (cluster_job);
create unique index cluster_member_evaluation on gradient.cluster_member (evaluation) where evaluation is not null;
create unique index cluster_member_derivation_build on gradient.cluster_member (derivation_build) where derivation_build is not null;

create table gradient.cluster_attempt (
  id bigint generated always as identity primary key,
  cluster_job bigint not null references gradient.cluster_job on delete cascade,
  created_at timestamptz not null,
  started_at timestamptz,
  finished_at timestamptz,
  outcome gradient.cluster_outcome
);
create unique index cluster_attempt_one_open on gradient.cluster_attempt (cluster_job) where finished_at is null;

-- Deliveries, proof -----------------------------------------------------------

create table gradient.pending_delivery (
  id bigint generated always as identity primary key,
  kind gradient.delivery_kind not null,
  key text not null,
  payload jsonb not null,
  created_at timestamptz not null,
  attempts integer not null default 0,
  next_attempt_at timestamptz not null,
  delivered_at timestamptz,
  failed_at timestamptz,
  last_error text
);
create unique index pending_delivery_unsettled on gradient.pending_delivery (kind, key)
  where delivered_at is null and failed_at is null;
create index pending_delivery_due on gradient.pending_delivery (next_attempt_at)
  where delivered_at is null and failed_at is null;

create table gradient.drift (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  counter text not null,
  derivation bigint,
  evaluation bigint,
  stored bigint,
  recounted bigint,
  context text not null
);

-- Defaults --------------------------------------------------------------------

insert into gradient.setting (name, value, default_value, unit, description)
select name, value, value, unit, description from (values
  ('fake_clock', 'off', 'on/off', 'Tests only: gradient.current_time() answers what the session setting gradient.fake_now says.'),
  ('turn', 'on', 'on/off', 'Writers take the turn above the keys. Switched off only by tests that prove the keys alone.'),
  ('build.max_attempts', '3', 'attempts', 'Charged failed attempts after which a transient failure is lasting.'),
  ('build.retry_backoff', '30', 'seconds', 'Wait before the first retry of a transient failure; doubles with every attempt.'),
  ('build.default_timeout', '14400', 'seconds', 'Total time limit of a build that names none; 0 is no limit.'),
  ('build.default_max_silent', '3600', 'seconds', 'Silence limit of a build that names none; 0 is no limit.'),
  ('build.log_limit', '67108864', 'bytes', 'Log kept of one build; over it the middle is dropped and marked.'),
  ('build.inputs_unavailable_max_loops', '3', 'attempts', 'Missing-input failures after which a build fails for good.'),
  ('build.substitute_miss_threshold', '2', 'misses', 'Substitute misses of one evaluation after which a substitution becomes an ordinary build.'),
  ('eval.max_attempts', '3', 'attempts', 'Evaluation assignments that failed for a passing reason before the evaluation fails.'),
  ('eval.max_lost_workers', '10', 'assignments', 'Assignments of one evaluation lost with their workers before it fails.'),
  ('eval.per_pass', '10', 'evaluations', 'Queued evaluations looked at in one evaluation pass.'),
  ('offers.limit', '1000', 'offers', 'Candidates a worker sees at once.'),
  ('assign.window', '64', 'builds', 'Best and oldest builds of a class and project that one assignment looks at.'),
  ('worker_grace', '120', 'seconds', 'Silence of a worker after which its jobs are returned.'),
  ('instance_grace', '30', 'seconds', 'Age of an unrenewed server instance whose lock is free before another server recovers its work.'),
  ('gc.wedged_evaluation', '86400', 'seconds', 'Age without a move after which an evaluation in flight no longer keeps its task''s old ones.'),
  ('gc.evaluation_batch', '20', 'evaluations', 'Old evaluations of a task deleted in one transaction.'),
  ('object_grace', '86400', 'seconds', 'Age of a stored object without a row before it is collected.')
) as s (name, value, unit, description);

insert into gradient.outcome_class (name, decision, charged, cascades, shown, description) values
  ('aborted', 'Aborted', false, false, 'aborted', 'Stopped because a user or the scheduler ordered it.'),
  ('worker_lost', 'Return', false, false, 'worker lost', 'The worker vanished; the job is queued again.'),
  ('worker_stopping', 'Return', false, false, 'worker stopping', 'The worker stopped and handed the job back.'),
  ('server_restart', 'Return', false, false, 'server restart', 'Closed by the recovery of a server that died.'),
  ('rejected', 'Return', false, false, 'rejected by worker', 'The worker refused the job before it started.'),
  ('worker_fault', 'Retry', true, true, 'worker fault', 'The worker or its store failed, not the build.'),
  ('missing_input', 'Retry', true, true, 'missing input', 'An input was not in the cache when the worker fetched it.'),
  ('substitute_miss', 'SubstituteMiss', true, true, 'substitute miss', 'The upstream cache did not have the path.'),
  ('upload_failed', 'Upload', false, false, 'upload failed', 'Built, but not every output reached the cache; tried again.'),
  ('timeout_total', 'Timeout', true, true, 'total', 'The builder ran into its total time limit.'),
  ('timeout_silent', 'Timeout', true, true, 'silent', 'The builder was silent longer than its limit.'),
  ('log_limit', 'Permanent', true, true, 'log limit', 'The builder wrote more log than its limit.'),
  ('out_of_memory', 'Retry', true, true, 'out of memory', 'The builder or Nix ran out of memory.'),
  ('disk_full', 'Retry', true, true, 'disk full', 'The worker had no space left.'),
  ('network', 'Retry', true, true, 'network', 'A connection broke while the job ran.'),
  ('builder_failed', 'Permanent', true, true, 'builder failed', 'The builder itself failed: a verdict on the build.'),
  ('evaluation_failed', 'Permanent', true, false, 'evaluation failed', 'Fetching or evaluating the flake failed.');
