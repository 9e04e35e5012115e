CREATE SCHEMA gradient;

COMMENT ON SCHEMA gradient IS 'Gradient: tables, types, views, and the functions a person or a script calls.';

CREATE SCHEMA graph;

COMMENT ON SCHEMA graph IS 'Gradient, internal: what may start, what failed, what is known. Called by the servers.';

CREATE SCHEMA scheduler;

COMMENT ON SCHEMA scheduler IS 'Gradient, internal: offers, assignment, waiting, recovery. Called by the servers.';

CREATE TYPE gradient.assignment_kind AS ENUM (
    'Evaluation',
    'Build'
);

CREATE TYPE gradient.assignment_outcome AS ENUM (
    'Completed',
    'Failed',
    'Abandoned'
);

CREATE TYPE gradient.attempt_outcome AS ENUM (
    'Running',
    'Built',
    'Substituted',
    'Failed',
    'Aborted'
);

CREATE TYPE gradient.build_status AS ENUM (
    'Created',
    'Queued',
    'Building',
    'Completed',
    'FailedPermanent',
    'Aborted',
    'DependencyFailed',
    'Substituted',
    'FailedTransient',
    'FailedTimeout',
    'Skipped'
);

CREATE TYPE gradient.cluster_outcome AS ENUM (
    'Succeeded',
    'Failed',
    'PrepareFailed',
    'Aborted'
);

CREATE TYPE gradient.cluster_status AS ENUM (
    'Queued',
    'Running',
    'Completed',
    'Failed',
    'Aborted'
);

CREATE TYPE gradient.concurrency_policy AS ENUM (
    'HardAbort',
    'SoftAbort',
    'All',
    'Skip'
);

CREATE TYPE gradient.delivery_kind AS ENUM (
    'LogFinalize',
    'Event',
    'Webhook'
);

CREATE TYPE gradient.edge_kind AS ENUM (
    'Build',
    'Runtime',
    'Both'
);

CREATE TYPE gradient.evaluation_kind AS ENUM (
    'Normal',
    'InputUpdate',
    'DrvRecovery'
);

CREATE TYPE gradient.evaluation_status AS ENUM (
    'Queued',
    'EvaluatingFlake',
    'EvaluatingDerivation',
    'Building',
    'Waiting',
    'Completed',
    'Failed',
    'Aborted',
    'Fetching'
);

CREATE TYPE gradient.failure_decision AS ENUM (
    'Retry',
    'Permanent',
    'Timeout',
    'Aborted',
    'Return',
    'SubstituteMiss',
    'Upload'
);

CREATE TYPE gradient.message_level AS ENUM (
    'Error',
    'Warning',
    'Notice'
);

CREATE TYPE gradient.subscription_mode AS ENUM (
    'ReadWrite',
    'ReadOnly',
    'WriteOnly'
);

CREATE TYPE gradient.walk_mode AS ENUM (
    'Pruned',
    'Full'
);

CREATE TABLE gradient.build_attempt (
    id bigint NOT NULL,
    build_job bigint,
    derivation_build bigint NOT NULL,
    dispatched_job bigint,
    substitute boolean DEFAULT false NOT NULL,
    outcome gradient.attempt_outcome NOT NULL,
    outcome_class text,
    failure_message text,
    build_context jsonb DEFAULT '{}'::jsonb NOT NULL,
    build_started_at timestamp with time zone,
    build_finished_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    log_truncated_bytes bigint DEFAULT 0 NOT NULL,
    log_finished boolean DEFAULT false NOT NULL
);

ALTER TABLE gradient.build_attempt ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.build_attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.build_class (
    id integer NOT NULL,
    architecture text NOT NULL,
    required_features text[] NOT NULL
);

ALTER TABLE gradient.build_class ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.build_class_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.build_job (
    id bigint NOT NULL,
    evaluation bigint NOT NULL,
    derivation_build bigint NOT NULL,
    score double precision,
    aborted boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone NOT NULL
);

ALTER TABLE gradient.build_job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.build_job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.build_log_chunk (
    build_attempt bigint NOT NULL,
    chunk_index integer NOT NULL,
    byte_start bigint NOT NULL,
    byte_len integer NOT NULL,
    line_count integer NOT NULL,
    stored_size integer NOT NULL
);

CREATE TABLE gradient.build_product (
    id bigint NOT NULL,
    derivation_output bigint NOT NULL,
    file_type text NOT NULL,
    subtype text NOT NULL,
    name text NOT NULL,
    path text NOT NULL,
    size bigint
);

ALTER TABLE gradient.build_product ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.build_product_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cache (
    id bigint NOT NULL,
    name text NOT NULL,
    display_name text NOT NULL,
    active boolean DEFAULT true NOT NULL,
    priority integer DEFAULT 40 NOT NULL,
    key_name text NOT NULL,
    public_key text NOT NULL,
    private_key_encrypted bytea NOT NULL,
    public boolean DEFAULT false NOT NULL,
    max_storage_bytes bigint,
    max_nar_size bigint DEFAULT '17179869184'::bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT cache_max_nar_size_check CHECK ((max_nar_size > 0)),
    CONSTRAINT cache_max_storage_bytes_check CHECK ((max_storage_bytes >= 0)),
    CONSTRAINT cache_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);

ALTER TABLE gradient.cache ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cache_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cache_token (
    id bigint NOT NULL,
    cache bigint NOT NULL,
    name text NOT NULL,
    token_hash bytea NOT NULL,
    can_write boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone NOT NULL
);

ALTER TABLE gradient.cache_token ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cache_token_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cache_upstream (
    id bigint NOT NULL,
    cache bigint NOT NULL,
    display_name text NOT NULL,
    url text NOT NULL,
    public_key text NOT NULL,
    mode gradient.subscription_mode DEFAULT 'ReadOnly'::gradient.subscription_mode NOT NULL,
    active boolean DEFAULT true NOT NULL
);

ALTER TABLE gradient.cache_upstream ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cache_upstream_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cached_path (
    id bigint NOT NULL,
    hash text NOT NULL,
    package text NOT NULL,
    file_hash text NOT NULL,
    file_size bigint NOT NULL,
    nar_hash text NOT NULL,
    nar_size bigint NOT NULL,
    compression text NOT NULL,
    "references" text[] NOT NULL,
    deriver text,
    ca text,
    confirmed boolean DEFAULT true NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT cached_path_compression_check CHECK ((compression = ANY (ARRAY['none'::text, 'xz'::text, 'zstd'::text, 'bzip2'::text, 'gzip'::text]))),
    CONSTRAINT cached_path_file_size_check CHECK ((file_size >= 0)),
    CONSTRAINT cached_path_hash_check CHECK ((hash ~ '^[0-9a-df-np-sv-z]{32}$'::text)),
    CONSTRAINT cached_path_nar_size_check CHECK ((nar_size >= 0))
);

ALTER TABLE gradient.cached_path ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cached_path_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cached_path_signature (
    cached_path bigint NOT NULL,
    cache bigint NOT NULL,
    signature text,
    created_at timestamp with time zone NOT NULL
);

CREATE TABLE gradient.cluster_attempt (
    id bigint NOT NULL,
    cluster_job bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    outcome gradient.cluster_outcome
);

ALTER TABLE gradient.cluster_attempt ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cluster_attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cluster_job (
    id bigint NOT NULL,
    status gradient.cluster_status NOT NULL,
    same_zone boolean DEFAULT false NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    retry_budget integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

ALTER TABLE gradient.cluster_job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cluster_job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.cluster_member (
    id bigint NOT NULL,
    cluster_job bigint NOT NULL,
    evaluation bigint,
    derivation_build bigint,
    role text NOT NULL,
    is_primary boolean DEFAULT false NOT NULL,
    pin text,
    CONSTRAINT one_kind_of_member CHECK (((evaluation IS NULL) <> (derivation_build IS NULL)))
);

ALTER TABLE gradient.cluster_member ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.cluster_member_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.commit (
    id bigint NOT NULL,
    hash text NOT NULL,
    message text DEFAULT ''::text NOT NULL,
    author_name text,
    CONSTRAINT commit_hash_check CHECK ((hash ~ '^[0-9a-f]{40,64}$'::text))
);

ALTER TABLE gradient.commit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.commit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.deployed_object (
    kind text NOT NULL,
    identity text NOT NULL,
    name text NOT NULL,
    path text NOT NULL,
    sha256 text NOT NULL,
    fingerprint text NOT NULL,
    CONSTRAINT deployed_object_kind_check CHECK ((kind = ANY (ARRAY['file'::text, 'function'::text, 'view'::text, 'trigger'::text])))
);

COMMENT ON TABLE gradient.deployed_object IS 'Every function, view and trigger that the deployer made, and every file it read. "gradient db verify" compares the fingerprints with what the database holds.';

COMMENT ON COLUMN gradient.deployed_object.identity IS 'Name with argument types for a function; schema.table.trigger for a trigger; the path for a file.';

COMMENT ON COLUMN gradient.deployed_object.name IS 'Schema-qualified name: what the overloads of a function share.';

COMMENT ON COLUMN gradient.deployed_object.path IS 'The file below sql/functions that declares it.';

COMMENT ON COLUMN gradient.deployed_object.sha256 IS 'Checksum of the text that declares it.';

COMMENT ON COLUMN gradient.deployed_object.fingerprint IS 'MD5 of the definition as the server prints it, taken after the deployment.';

CREATE TABLE gradient.deployment (
    singleton boolean NOT NULL,
    digest text NOT NULL,
    role_prefix text NOT NULL,
    server_version integer NOT NULL,
    deployed_at timestamp with time zone NOT NULL,
    CONSTRAINT deployment_singleton_check CHECK (singleton)
);

COMMENT ON TABLE gradient.deployment IS 'What is deployed: one row, written by "gradient db deploy" in the transaction of the deployment.';

COMMENT ON COLUMN gradient.deployment.singleton IS 'Always true: the table has one row.';

COMMENT ON COLUMN gradient.deployment.digest IS 'SHA-256 over the functions folder, the applied migrations, the roles and the server''s major version.';

COMMENT ON COLUMN gradient.deployment.server_version IS 'Major version of the PostgreSQL that the fingerprints were taken on.';

CREATE TABLE gradient.derivation (
    id bigint NOT NULL,
    hash text NOT NULL,
    name text NOT NULL,
    architecture text DEFAULT ''::text NOT NULL,
    required_features text[] DEFAULT '{}'::text[] NOT NULL,
    pname text,
    prefer_local_build boolean DEFAULT false NOT NULL,
    is_fixed_output boolean DEFAULT false NOT NULL,
    allow_substitutes boolean DEFAULT true NOT NULL,
    ifd boolean DEFAULT false NOT NULL,
    walked boolean DEFAULT false NOT NULL,
    drv_present boolean DEFAULT false NOT NULL,
    unwalked_inputs integer DEFAULT 0 NOT NULL,
    closure_size bigint,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT derivation_hash_check CHECK ((hash ~ '^[0-9a-df-np-sv-z]{32}$'::text)),
    CONSTRAINT derivation_name_check CHECK (((length(name) <= 207) AND (name ~ '^[a-zA-Z0-9+._?=-]+$'::text)))
)
WITH (fillfactor='85', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE gradient.derivation_build (
    derivation bigint NOT NULL,
    status gradient.build_status NOT NULL,
    cache_available boolean DEFAULT false NOT NULL,
    probed boolean DEFAULT false NOT NULL,
    substituted boolean DEFAULT false NOT NULL,
    fetchable boolean DEFAULT false NOT NULL,
    wanted boolean DEFAULT false NOT NULL,
    prioritized boolean DEFAULT false NOT NULL,
    blocking_deps integer DEFAULT 0 NOT NULL,
    missing_runtime_deps integer DEFAULT 0 NOT NULL,
    missing_sources integer DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    timeout_secs bigint,
    max_silent_secs bigint,
    failed_by bigint,
    retry_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    queued_at timestamp with time zone,
    ready_at timestamp with time zone,
    dispatched_at timestamp with time zone,
    CONSTRAINT derivation_build_max_silent_secs_check CHECK ((max_silent_secs >= 0)),
    CONSTRAINT derivation_build_timeout_secs_check CHECK ((timeout_secs >= 0))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.02');

CREATE TABLE gradient.derivation_dependency (
    derivation bigint NOT NULL,
    dependency bigint NOT NULL,
    kind gradient.edge_kind NOT NULL
);

ALTER TABLE gradient.derivation ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.derivation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.derivation_input_source (
    derivation bigint NOT NULL,
    hash text NOT NULL,
    package text NOT NULL,
    CONSTRAINT derivation_input_source_hash_check CHECK ((hash ~ '^[0-9a-df-np-sv-z]{32}$'::text))
);

CREATE TABLE gradient.derivation_metric (
    id bigint NOT NULL,
    derivation bigint NOT NULL,
    pname text NOT NULL,
    architecture text NOT NULL,
    build_time_ms bigint NOT NULL,
    peak_ram_mb bigint,
    cpu_time_ms bigint,
    output_bytes bigint,
    oom_killed boolean DEFAULT false NOT NULL,
    worker_id text NOT NULL,
    created_at timestamp with time zone NOT NULL
);

ALTER TABLE gradient.derivation_metric ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.derivation_metric_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.derivation_output (
    id bigint NOT NULL,
    derivation bigint NOT NULL,
    name text NOT NULL,
    hash text NOT NULL,
    package text NOT NULL,
    cached_path bigint,
    nar_size bigint,
    external_url text,
    external jsonb,
    CONSTRAINT derivation_output_hash_check CHECK ((hash ~ '^[0-9a-df-np-sv-z]{32}$'::text))
)
WITH (fillfactor='85', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

ALTER TABLE gradient.derivation_output ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.derivation_output_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.dispatched_job (
    id bigint NOT NULL,
    kind gradient.assignment_kind NOT NULL,
    job text NOT NULL,
    evaluation bigint,
    derivation_build bigint,
    project bigint NOT NULL,
    worker_id text NOT NULL,
    instance text NOT NULL,
    substitute boolean DEFAULT false NOT NULL,
    steps text[],
    upload_token_hash bytea,
    score double precision,
    score_breakdown jsonb,
    abort_requested_at timestamp with time zone,
    queued_at timestamp with time zone NOT NULL,
    dispatched_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    outcome gradient.assignment_outcome,
    outcome_class text,
    CONSTRAINT closed_has_an_outcome CHECK (((finished_at IS NULL) = (outcome IS NULL)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

ALTER TABLE gradient.dispatched_job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.dispatched_job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.dispatched_job_phase (
    dispatched_job bigint NOT NULL,
    phase text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    milliseconds bigint
);

CREATE TABLE gradient.drift (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    counter text NOT NULL,
    derivation bigint,
    evaluation bigint,
    stored bigint,
    recounted bigint,
    context text NOT NULL
);

ALTER TABLE gradient.drift ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.drift_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.entry_point (
    id bigint NOT NULL,
    evaluation bigint NOT NULL,
    derivation bigint NOT NULL,
    attribute text NOT NULL,
    created_at timestamp with time zone NOT NULL
);

ALTER TABLE gradient.entry_point ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.entry_point_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.evaluation (
    id bigint NOT NULL,
    task bigint NOT NULL,
    repository text NOT NULL,
    revision text,
    commit bigint,
    wildcard text NOT NULL,
    status gradient.evaluation_status NOT NULL,
    kind gradient.evaluation_kind DEFAULT 'Normal'::gradient.evaluation_kind NOT NULL,
    walk_mode gradient.walk_mode DEFAULT 'Pruned'::gradient.walk_mode NOT NULL,
    previous bigint,
    flake_source text,
    waiting_reason jsonb,
    trigger bigint,
    concurrent boolean DEFAULT false NOT NULL,
    prioritized boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    fetch_started_at timestamp with time zone,
    eval_flake_started_at timestamp with time zone,
    eval_drv_started_at timestamp with time zone,
    building_started_at timestamp with time zone,
    finished_at timestamp with time zone,
    graph_version bigint DEFAULT 0 NOT NULL,
    named_shared_builds integer DEFAULT 0 NOT NULL,
    active_shared_builds integer DEFAULT 0 NOT NULL,
    failed_shared_builds integer DEFAULT 0 NOT NULL,
    queued_shared_builds integer DEFAULT 0 NOT NULL,
    building_shared_builds integer DEFAULT 0 NOT NULL,
    CONSTRAINT finished_when_terminal CHECK (((status = ANY (ARRAY['Completed'::gradient.evaluation_status, 'Failed'::gradient.evaluation_status, 'Aborted'::gradient.evaluation_status])) = (finished_at IS NOT NULL))),
    CONSTRAINT waiting_has_a_reason CHECK (((status = 'Waiting'::gradient.evaluation_status) = (waiting_reason IS NOT NULL)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE gradient.evaluation_flake_input_override (
    evaluation bigint NOT NULL,
    input_name text NOT NULL,
    url text
);

ALTER TABLE gradient.evaluation ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.evaluation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.evaluation_message (
    id bigint NOT NULL,
    evaluation bigint NOT NULL,
    level gradient.message_level NOT NULL,
    message text NOT NULL,
    source text NOT NULL,
    attribute text,
    created_at timestamp with time zone NOT NULL
);

ALTER TABLE gradient.evaluation_message ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.evaluation_message_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.evaluation_shared_build_delta (
    id bigint NOT NULL,
    evaluation bigint NOT NULL,
    named integer NOT NULL,
    active integer NOT NULL,
    failed integer NOT NULL,
    queued integer NOT NULL,
    building integer NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

ALTER TABLE gradient.evaluation_shared_build_delta ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.evaluation_shared_build_delta_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE UNLOGGED TABLE gradient.instance_seen (
    instance text NOT NULL,
    last_seen timestamp with time zone NOT NULL
);

CREATE TABLE gradient.nar_object (
    file_hash text NOT NULL,
    file_size bigint NOT NULL,
    nar_hash text NOT NULL,
    nar_size bigint NOT NULL,
    compression text NOT NULL,
    content_hash text,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT nar_object_compression_check CHECK ((compression = ANY (ARRAY['none'::text, 'xz'::text, 'zstd'::text, 'bzip2'::text, 'gzip'::text]))),
    CONSTRAINT nar_object_file_size_check CHECK ((file_size >= 0)),
    CONSTRAINT nar_object_nar_size_check CHECK ((nar_size >= 0))
);

CREATE SEQUENCE gradient.offer_generation
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE UNLOGGED TABLE gradient.offer_score (
    worker_id text NOT NULL,
    job text NOT NULL,
    missing_count integer NOT NULL,
    missing_nar_size bigint,
    outputs_present boolean DEFAULT false NOT NULL,
    at timestamp with time zone NOT NULL
);

CREATE TABLE gradient.outcome_class (
    name text NOT NULL,
    decision gradient.failure_decision NOT NULL,
    charged boolean NOT NULL,
    cascades boolean NOT NULL,
    shown text NOT NULL,
    description text NOT NULL
);

CREATE UNLOGGED TABLE gradient.pass_run (
    instance text NOT NULL,
    pass text NOT NULL,
    last_started_at timestamp with time zone,
    last_finished_at timestamp with time zone,
    milliseconds double precision,
    runs bigint DEFAULT 0 NOT NULL,
    errors bigint DEFAULT 0 NOT NULL,
    last_error text,
    next_run_at timestamp with time zone
);

CREATE TABLE gradient.pending_delivery (
    id bigint NOT NULL,
    kind gradient.delivery_kind NOT NULL,
    key text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    next_attempt_at timestamp with time zone NOT NULL,
    delivered_at timestamp with time zone,
    failed_at timestamp with time zone,
    last_error text
);

ALTER TABLE gradient.pending_delivery ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.pending_delivery_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.phase_event (
    id bigint NOT NULL,
    subject_kind gradient.assignment_kind NOT NULL,
    subject bigint NOT NULL,
    phase text NOT NULL,
    at timestamp with time zone NOT NULL,
    worker_id text,
    detail jsonb
);

ALTER TABLE gradient.phase_event ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.phase_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.project (
    id bigint NOT NULL,
    name text NOT NULL,
    display_name text NOT NULL,
    public boolean DEFAULT false NOT NULL,
    ssh_public_key text,
    ssh_private_key_encrypted bytea,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT project_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);

CREATE TABLE gradient.project_cache (
    project bigint NOT NULL,
    cache bigint NOT NULL,
    mode gradient.subscription_mode DEFAULT 'ReadWrite'::gradient.subscription_mode NOT NULL
);

ALTER TABLE gradient.project ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.project_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.project_trusted_key (
    project bigint NOT NULL,
    public_key text NOT NULL
);

CREATE TABLE gradient.pushed_path (
    cache bigint NOT NULL,
    hash text NOT NULL,
    package text NOT NULL,
    file_hash text NOT NULL,
    file_size bigint NOT NULL,
    nar_hash text NOT NULL,
    nar_size bigint NOT NULL,
    compression text NOT NULL,
    "references" text[] NOT NULL,
    deriver text,
    ca text,
    signature text,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT pushed_path_hash_check CHECK ((hash ~ '^[0-9a-df-np-sv-z]{32}$'::text))
);

CREATE TABLE gradient.ready_build (
    derivation_build bigint NOT NULL,
    project bigint NOT NULL,
    class integer NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    queued_at timestamp with time zone NOT NULL,
    offer_generation bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE gradient.server_instance (
    name text NOT NULL,
    lock_key integer NOT NULL,
    version text NOT NULL,
    address text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    draining boolean DEFAULT false NOT NULL
);

ALTER TABLE gradient.server_instance ALTER COLUMN lock_key ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.server_instance_lock_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.setting (
    name text NOT NULL,
    value text NOT NULL,
    default_value text NOT NULL,
    unit text NOT NULL,
    description text NOT NULL
);

CREATE TABLE gradient.task (
    id bigint NOT NULL,
    project bigint NOT NULL,
    name text NOT NULL,
    display_name text NOT NULL,
    active boolean DEFAULT true NOT NULL,
    repository text NOT NULL,
    revision text,
    wildcard text DEFAULT 'packages.x86_64-linux.*'::text NOT NULL,
    keep_evaluations integer DEFAULT 30 NOT NULL,
    concurrency gradient.concurrency_policy DEFAULT 'SoftAbort'::gradient.concurrency_policy NOT NULL,
    wait_for_workers boolean DEFAULT false NOT NULL,
    retry_failed_builds boolean DEFAULT true NOT NULL,
    allow_import_from_derivation boolean DEFAULT false NOT NULL,
    eval_timeout_secs integer DEFAULT 3600 NOT NULL,
    eval_memory_mb integer DEFAULT 8192 NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT task_eval_memory_mb_check CHECK ((eval_memory_mb > 0)),
    CONSTRAINT task_eval_timeout_secs_check CHECK ((eval_timeout_secs > 0)),
    CONSTRAINT task_keep_evaluations_check CHECK ((keep_evaluations > 0)),
    CONSTRAINT task_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);

CREATE TABLE gradient.task_flake_input_override (
    task bigint NOT NULL,
    input_name text NOT NULL,
    url text
);

ALTER TABLE gradient.task ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.task_trigger (
    id bigint NOT NULL,
    task bigint NOT NULL,
    trigger_type text NOT NULL,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    active boolean DEFAULT true NOT NULL,
    last_fired_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT task_trigger_trigger_type_check CHECK ((trigger_type = ANY (ARRAY['Polling'::text, 'Push'::text, 'PullRequest'::text, 'Time'::text])))
);

ALTER TABLE gradient.task_trigger ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.task_trigger_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.team (
    id bigint NOT NULL,
    name text NOT NULL,
    display_name text NOT NULL,
    new_projects_workers boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT team_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text))
);

ALTER TABLE gradient.team ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.team_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.team_project (
    team bigint NOT NULL,
    project bigint NOT NULL,
    workers boolean DEFAULT false NOT NULL
);

CREATE TABLE gradient.team_worker (
    id bigint NOT NULL,
    team bigint NOT NULL,
    worker_id text NOT NULL,
    token_hash bytea NOT NULL,
    display_name text NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    enable_fetch boolean DEFAULT true NOT NULL,
    enable_eval boolean DEFAULT true NOT NULL,
    enable_build boolean DEFAULT true NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT team_worker_worker_id_check CHECK ((worker_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'::text))
);

ALTER TABLE gradient.team_worker ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.team_worker_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.worker_connection (
    worker_id text NOT NULL,
    connection bigint NOT NULL,
    instance text NOT NULL,
    projects bigint[] NOT NULL,
    can_fetch boolean NOT NULL,
    can_eval boolean NOT NULL,
    can_build boolean NOT NULL,
    architectures text[] NOT NULL,
    system_features text[] NOT NULL,
    build_slots integer NOT NULL,
    eval_slots integer NOT NULL,
    cpu_count integer,
    ram_total_mb bigint,
    zone text,
    endpoint text,
    draining boolean DEFAULT false NOT NULL,
    version text NOT NULL,
    connected_at timestamp with time zone NOT NULL,
    disconnected_at timestamp with time zone,
    CONSTRAINT worker_connection_build_slots_check CHECK ((build_slots >= 0)),
    CONSTRAINT worker_connection_eval_slots_check CHECK ((eval_slots >= 0))
)
WITH (fillfactor='70');

ALTER TABLE gradient.worker_connection ALTER COLUMN connection ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.worker_connection_connection_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE gradient.worker_registration (
    id bigint NOT NULL,
    project bigint NOT NULL,
    worker_id text NOT NULL,
    token_hash bytea NOT NULL,
    display_name text NOT NULL,
    active boolean DEFAULT true NOT NULL,
    enable_fetch boolean DEFAULT true NOT NULL,
    enable_eval boolean DEFAULT true NOT NULL,
    enable_build boolean DEFAULT true NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT worker_registration_worker_id_check CHECK ((worker_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'::text))
);

ALTER TABLE gradient.worker_registration ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME gradient.worker_registration_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE UNLOGGED TABLE gradient.worker_seen (
    worker_id text NOT NULL,
    last_seen timestamp with time zone NOT NULL,
    metrics jsonb DEFAULT '{}'::jsonb NOT NULL
);

ALTER TABLE ONLY gradient.build_attempt
    ADD CONSTRAINT build_attempt_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.build_class
    ADD CONSTRAINT build_class_architecture_required_features_key UNIQUE (architecture, required_features);

ALTER TABLE ONLY gradient.build_class
    ADD CONSTRAINT build_class_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.build_job
    ADD CONSTRAINT build_job_evaluation_derivation_build_key UNIQUE (evaluation, derivation_build);

ALTER TABLE ONLY gradient.build_job
    ADD CONSTRAINT build_job_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.build_log_chunk
    ADD CONSTRAINT build_log_chunk_pkey PRIMARY KEY (build_attempt, chunk_index);

ALTER TABLE ONLY gradient.build_product
    ADD CONSTRAINT build_product_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cache
    ADD CONSTRAINT cache_name_key UNIQUE (name);

ALTER TABLE ONLY gradient.cache
    ADD CONSTRAINT cache_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cache_token
    ADD CONSTRAINT cache_token_cache_name_key UNIQUE (cache, name);

ALTER TABLE ONLY gradient.cache_token
    ADD CONSTRAINT cache_token_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cache_token
    ADD CONSTRAINT cache_token_token_hash_key UNIQUE (token_hash);

ALTER TABLE ONLY gradient.cache_upstream
    ADD CONSTRAINT cache_upstream_cache_url_key UNIQUE (cache, url);

ALTER TABLE ONLY gradient.cache_upstream
    ADD CONSTRAINT cache_upstream_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cached_path
    ADD CONSTRAINT cached_path_hash_key UNIQUE (hash);

ALTER TABLE ONLY gradient.cached_path
    ADD CONSTRAINT cached_path_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cached_path_signature
    ADD CONSTRAINT cached_path_signature_pkey PRIMARY KEY (cached_path, cache);

ALTER TABLE ONLY gradient.cluster_attempt
    ADD CONSTRAINT cluster_attempt_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cluster_job
    ADD CONSTRAINT cluster_job_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.cluster_member
    ADD CONSTRAINT cluster_member_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.commit
    ADD CONSTRAINT commit_hash_key UNIQUE (hash);

ALTER TABLE ONLY gradient.commit
    ADD CONSTRAINT commit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.deployed_object
    ADD CONSTRAINT deployed_object_pkey PRIMARY KEY (kind, identity);

ALTER TABLE ONLY gradient.deployment
    ADD CONSTRAINT deployment_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY gradient.derivation_build
    ADD CONSTRAINT derivation_build_pkey PRIMARY KEY (derivation);

ALTER TABLE ONLY gradient.derivation_dependency
    ADD CONSTRAINT derivation_dependency_pkey PRIMARY KEY (derivation, dependency);

ALTER TABLE ONLY gradient.derivation
    ADD CONSTRAINT derivation_hash_name_key UNIQUE (hash, name);

ALTER TABLE ONLY gradient.derivation_input_source
    ADD CONSTRAINT derivation_input_source_pkey PRIMARY KEY (derivation, hash);

ALTER TABLE ONLY gradient.derivation_metric
    ADD CONSTRAINT derivation_metric_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.derivation_output
    ADD CONSTRAINT derivation_output_derivation_name_key UNIQUE (derivation, name);

ALTER TABLE ONLY gradient.derivation_output
    ADD CONSTRAINT derivation_output_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.derivation
    ADD CONSTRAINT derivation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.dispatched_job_phase
    ADD CONSTRAINT dispatched_job_phase_pkey PRIMARY KEY (dispatched_job, phase);

ALTER TABLE ONLY gradient.dispatched_job
    ADD CONSTRAINT dispatched_job_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.drift
    ADD CONSTRAINT drift_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.entry_point
    ADD CONSTRAINT entry_point_evaluation_attribute_key UNIQUE (evaluation, attribute);

ALTER TABLE ONLY gradient.entry_point
    ADD CONSTRAINT entry_point_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.evaluation_flake_input_override
    ADD CONSTRAINT evaluation_flake_input_override_pkey PRIMARY KEY (evaluation, input_name);

ALTER TABLE ONLY gradient.evaluation_message
    ADD CONSTRAINT evaluation_message_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.evaluation
    ADD CONSTRAINT evaluation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.evaluation_shared_build_delta
    ADD CONSTRAINT evaluation_shared_build_delta_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.instance_seen
    ADD CONSTRAINT instance_seen_pkey PRIMARY KEY (instance);

ALTER TABLE ONLY gradient.nar_object
    ADD CONSTRAINT nar_object_pkey PRIMARY KEY (file_hash);

ALTER TABLE ONLY gradient.offer_score
    ADD CONSTRAINT offer_score_pkey PRIMARY KEY (worker_id, job);

ALTER TABLE ONLY gradient.outcome_class
    ADD CONSTRAINT outcome_class_pkey PRIMARY KEY (name);

ALTER TABLE ONLY gradient.pass_run
    ADD CONSTRAINT pass_run_pkey PRIMARY KEY (instance, pass);

ALTER TABLE ONLY gradient.pending_delivery
    ADD CONSTRAINT pending_delivery_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.phase_event
    ADD CONSTRAINT phase_event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.project_cache
    ADD CONSTRAINT project_cache_pkey PRIMARY KEY (project, cache);

ALTER TABLE ONLY gradient.project
    ADD CONSTRAINT project_name_key UNIQUE (name);

ALTER TABLE ONLY gradient.project
    ADD CONSTRAINT project_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.project_trusted_key
    ADD CONSTRAINT project_trusted_key_pkey PRIMARY KEY (project, public_key);

ALTER TABLE ONLY gradient.pushed_path
    ADD CONSTRAINT pushed_path_pkey PRIMARY KEY (cache, hash);

ALTER TABLE ONLY gradient.ready_build
    ADD CONSTRAINT ready_build_pkey PRIMARY KEY (derivation_build, project);

ALTER TABLE ONLY gradient.server_instance
    ADD CONSTRAINT server_instance_lock_key_key UNIQUE (lock_key);

ALTER TABLE ONLY gradient.server_instance
    ADD CONSTRAINT server_instance_pkey PRIMARY KEY (name);

ALTER TABLE ONLY gradient.setting
    ADD CONSTRAINT setting_pkey PRIMARY KEY (name);

ALTER TABLE ONLY gradient.task_flake_input_override
    ADD CONSTRAINT task_flake_input_override_pkey PRIMARY KEY (task, input_name);

ALTER TABLE ONLY gradient.task
    ADD CONSTRAINT task_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.task
    ADD CONSTRAINT task_project_name_key UNIQUE (project, name);

ALTER TABLE ONLY gradient.task_trigger
    ADD CONSTRAINT task_trigger_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.team
    ADD CONSTRAINT team_name_key UNIQUE (name);

ALTER TABLE ONLY gradient.team
    ADD CONSTRAINT team_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.team_project
    ADD CONSTRAINT team_project_pkey PRIMARY KEY (team, project);

ALTER TABLE ONLY gradient.team_worker
    ADD CONSTRAINT team_worker_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.team_worker
    ADD CONSTRAINT team_worker_worker_id_key UNIQUE (worker_id);

ALTER TABLE ONLY gradient.worker_connection
    ADD CONSTRAINT worker_connection_connection_key UNIQUE (connection);

ALTER TABLE ONLY gradient.worker_connection
    ADD CONSTRAINT worker_connection_pkey PRIMARY KEY (worker_id);

ALTER TABLE ONLY gradient.worker_registration
    ADD CONSTRAINT worker_registration_pkey PRIMARY KEY (id);

ALTER TABLE ONLY gradient.worker_registration
    ADD CONSTRAINT worker_registration_project_worker_id_key UNIQUE (project, worker_id);

ALTER TABLE ONLY gradient.worker_seen
    ADD CONSTRAINT worker_seen_pkey PRIMARY KEY (worker_id);

CREATE INDEX build_attempt_build_job ON gradient.build_attempt USING btree (build_job);

CREATE INDEX build_attempt_derivation_build ON gradient.build_attempt USING btree (derivation_build, id);

CREATE INDEX build_attempt_dispatched_job ON gradient.build_attempt USING btree (dispatched_job);

CREATE INDEX build_job_derivation_build ON gradient.build_job USING btree (derivation_build) INCLUDE (evaluation);

CREATE INDEX build_product_derivation_output ON gradient.build_product USING btree (derivation_output);

CREATE INDEX cached_path_file_hash ON gradient.cached_path USING btree (file_hash);

CREATE INDEX cached_path_references ON gradient.cached_path USING gin ("references") WITH (fastupdate=off);

CREATE INDEX cached_path_signature_cache ON gradient.cached_path_signature USING btree (cache);

CREATE UNIQUE INDEX cluster_attempt_one_open ON gradient.cluster_attempt USING btree (cluster_job) WHERE (finished_at IS NULL);

CREATE INDEX cluster_member_cluster_job ON gradient.cluster_member USING btree (cluster_job);

CREATE UNIQUE INDEX cluster_member_derivation_build ON gradient.cluster_member USING btree (derivation_build) WHERE (derivation_build IS NOT NULL);

CREATE UNIQUE INDEX cluster_member_evaluation ON gradient.cluster_member USING btree (evaluation) WHERE (evaluation IS NOT NULL);

CREATE INDEX derivation_build_building ON gradient.derivation_build USING btree (derivation) WHERE (status = 'Building'::gradient.build_status);

CREATE INDEX derivation_build_failed_by ON gradient.derivation_build USING btree (failed_by) WHERE (failed_by IS NOT NULL);

CREATE INDEX derivation_build_retry ON gradient.derivation_build USING btree (retry_at) WHERE (retry_at IS NOT NULL);

CREATE INDEX derivation_dependency_dependency ON gradient.derivation_dependency USING btree (dependency) INCLUDE (derivation, kind);

CREATE INDEX derivation_input_source_hash ON gradient.derivation_input_source USING btree (hash) INCLUDE (derivation);

CREATE INDEX derivation_metric_derivation ON gradient.derivation_metric USING btree (derivation);

CREATE INDEX derivation_metric_history ON gradient.derivation_metric USING btree (pname, architecture, id);

CREATE INDEX derivation_output_cached_path ON gradient.derivation_output USING btree (cached_path);

CREATE INDEX derivation_output_hash ON gradient.derivation_output USING btree (hash);

CREATE INDEX dispatched_job_derivation_build ON gradient.dispatched_job USING btree (derivation_build);

CREATE INDEX dispatched_job_evaluation ON gradient.dispatched_job USING btree (evaluation);

CREATE UNIQUE INDEX dispatched_job_one_open ON gradient.dispatched_job USING btree (job) WHERE (finished_at IS NULL);

CREATE INDEX dispatched_job_open_instance ON gradient.dispatched_job USING btree (instance) WHERE (finished_at IS NULL);

CREATE INDEX dispatched_job_open_worker ON gradient.dispatched_job USING btree (worker_id) WHERE (finished_at IS NULL);

CREATE INDEX dispatched_job_project ON gradient.dispatched_job USING btree (project);

CREATE INDEX entry_point_derivation ON gradient.entry_point USING btree (derivation) INCLUDE (evaluation);

CREATE INDEX evaluation_commit ON gradient.evaluation USING btree (commit);

CREATE INDEX evaluation_in_flight ON gradient.evaluation USING btree (id) WHERE (status = ANY (ARRAY['Queued'::gradient.evaluation_status, 'Fetching'::gradient.evaluation_status, 'EvaluatingFlake'::gradient.evaluation_status, 'EvaluatingDerivation'::gradient.evaluation_status, 'Building'::gradient.evaluation_status, 'Waiting'::gradient.evaluation_status]));

CREATE INDEX evaluation_message_evaluation ON gradient.evaluation_message USING btree (evaluation);

CREATE UNIQUE INDEX evaluation_one_active_per_task ON gradient.evaluation USING btree (task) WHERE ((status = ANY (ARRAY['Queued'::gradient.evaluation_status, 'Fetching'::gradient.evaluation_status, 'EvaluatingFlake'::gradient.evaluation_status, 'EvaluatingDerivation'::gradient.evaluation_status, 'Building'::gradient.evaluation_status, 'Waiting'::gradient.evaluation_status])) AND (NOT concurrent));

CREATE INDEX evaluation_previous ON gradient.evaluation USING btree (previous);

CREATE INDEX evaluation_shared_build_delta_evaluation ON gradient.evaluation_shared_build_delta USING btree (evaluation);

CREATE INDEX evaluation_task ON gradient.evaluation USING btree (task, id);

CREATE INDEX evaluation_trigger ON gradient.evaluation USING btree (trigger);

CREATE INDEX nar_object_created_at ON gradient.nar_object USING btree (created_at);

CREATE INDEX pending_delivery_due ON gradient.pending_delivery USING btree (next_attempt_at) WHERE ((delivered_at IS NULL) AND (failed_at IS NULL));

CREATE UNIQUE INDEX pending_delivery_unsettled ON gradient.pending_delivery USING btree (kind, key) WHERE ((delivered_at IS NULL) AND (failed_at IS NULL));

CREATE INDEX phase_event_subject ON gradient.phase_event USING btree (subject_kind, subject);

CREATE INDEX project_cache_cache ON gradient.project_cache USING btree (cache);

CREATE INDEX pushed_path_file_hash ON gradient.pushed_path USING btree (file_hash);

CREATE INDEX ready_build_best ON gradient.ready_build USING btree (class, project, priority DESC, queued_at, derivation_build);

CREATE INDEX task_trigger_task ON gradient.task_trigger USING btree (task);

CREATE INDEX team_project_project ON gradient.team_project USING btree (project);

CREATE INDEX team_worker_team ON gradient.team_worker USING btree (team);

CREATE INDEX worker_registration_worker_id ON gradient.worker_registration USING btree (worker_id);

ALTER TABLE ONLY gradient.build_attempt
    ADD CONSTRAINT build_attempt_build_job_fkey FOREIGN KEY (build_job) REFERENCES gradient.build_job(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.build_attempt
    ADD CONSTRAINT build_attempt_derivation_build_fkey FOREIGN KEY (derivation_build) REFERENCES gradient.derivation_build(derivation) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.build_attempt
    ADD CONSTRAINT build_attempt_dispatched_job_fkey FOREIGN KEY (dispatched_job) REFERENCES gradient.dispatched_job(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.build_attempt
    ADD CONSTRAINT build_attempt_outcome_class_fkey FOREIGN KEY (outcome_class) REFERENCES gradient.outcome_class(name);

ALTER TABLE ONLY gradient.build_job
    ADD CONSTRAINT build_job_derivation_build_fkey FOREIGN KEY (derivation_build) REFERENCES gradient.derivation_build(derivation) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.build_job
    ADD CONSTRAINT build_job_evaluation_fkey FOREIGN KEY (evaluation) REFERENCES gradient.evaluation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.build_log_chunk
    ADD CONSTRAINT build_log_chunk_build_attempt_fkey FOREIGN KEY (build_attempt) REFERENCES gradient.build_attempt(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.build_product
    ADD CONSTRAINT build_product_derivation_output_fkey FOREIGN KEY (derivation_output) REFERENCES gradient.derivation_output(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cache_token
    ADD CONSTRAINT cache_token_cache_fkey FOREIGN KEY (cache) REFERENCES gradient.cache(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cache_upstream
    ADD CONSTRAINT cache_upstream_cache_fkey FOREIGN KEY (cache) REFERENCES gradient.cache(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cached_path_signature
    ADD CONSTRAINT cached_path_signature_cache_fkey FOREIGN KEY (cache) REFERENCES gradient.cache(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cached_path_signature
    ADD CONSTRAINT cached_path_signature_cached_path_fkey FOREIGN KEY (cached_path) REFERENCES gradient.cached_path(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cluster_attempt
    ADD CONSTRAINT cluster_attempt_cluster_job_fkey FOREIGN KEY (cluster_job) REFERENCES gradient.cluster_job(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cluster_member
    ADD CONSTRAINT cluster_member_cluster_job_fkey FOREIGN KEY (cluster_job) REFERENCES gradient.cluster_job(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cluster_member
    ADD CONSTRAINT cluster_member_derivation_build_fkey FOREIGN KEY (derivation_build) REFERENCES gradient.derivation_build(derivation) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.cluster_member
    ADD CONSTRAINT cluster_member_evaluation_fkey FOREIGN KEY (evaluation) REFERENCES gradient.evaluation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.derivation_build
    ADD CONSTRAINT derivation_build_derivation_fkey FOREIGN KEY (derivation) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.derivation_build
    ADD CONSTRAINT derivation_build_failed_by_fkey FOREIGN KEY (failed_by) REFERENCES gradient.build_attempt(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.derivation_dependency
    ADD CONSTRAINT derivation_dependency_dependency_fkey FOREIGN KEY (dependency) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.derivation_dependency
    ADD CONSTRAINT derivation_dependency_derivation_fkey FOREIGN KEY (derivation) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.derivation_input_source
    ADD CONSTRAINT derivation_input_source_derivation_fkey FOREIGN KEY (derivation) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.derivation_metric
    ADD CONSTRAINT derivation_metric_derivation_fkey FOREIGN KEY (derivation) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.derivation_output
    ADD CONSTRAINT derivation_output_cached_path_fkey FOREIGN KEY (cached_path) REFERENCES gradient.cached_path(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.derivation_output
    ADD CONSTRAINT derivation_output_derivation_fkey FOREIGN KEY (derivation) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.dispatched_job
    ADD CONSTRAINT dispatched_job_derivation_build_fkey FOREIGN KEY (derivation_build) REFERENCES gradient.derivation_build(derivation) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.dispatched_job
    ADD CONSTRAINT dispatched_job_evaluation_fkey FOREIGN KEY (evaluation) REFERENCES gradient.evaluation(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.dispatched_job
    ADD CONSTRAINT dispatched_job_outcome_class_fkey FOREIGN KEY (outcome_class) REFERENCES gradient.outcome_class(name);

ALTER TABLE ONLY gradient.dispatched_job_phase
    ADD CONSTRAINT dispatched_job_phase_dispatched_job_fkey FOREIGN KEY (dispatched_job) REFERENCES gradient.dispatched_job(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.dispatched_job
    ADD CONSTRAINT dispatched_job_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.entry_point
    ADD CONSTRAINT entry_point_derivation_fkey FOREIGN KEY (derivation) REFERENCES gradient.derivation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.entry_point
    ADD CONSTRAINT entry_point_evaluation_fkey FOREIGN KEY (evaluation) REFERENCES gradient.evaluation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.evaluation
    ADD CONSTRAINT evaluation_commit_fkey FOREIGN KEY (commit) REFERENCES gradient.commit(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.evaluation_flake_input_override
    ADD CONSTRAINT evaluation_flake_input_override_evaluation_fkey FOREIGN KEY (evaluation) REFERENCES gradient.evaluation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.evaluation_message
    ADD CONSTRAINT evaluation_message_evaluation_fkey FOREIGN KEY (evaluation) REFERENCES gradient.evaluation(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.evaluation
    ADD CONSTRAINT evaluation_previous_fkey FOREIGN KEY (previous) REFERENCES gradient.evaluation(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.evaluation
    ADD CONSTRAINT evaluation_task_fkey FOREIGN KEY (task) REFERENCES gradient.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.evaluation
    ADD CONSTRAINT evaluation_trigger_fkey FOREIGN KEY (trigger) REFERENCES gradient.task_trigger(id) ON DELETE SET NULL;

ALTER TABLE ONLY gradient.project_cache
    ADD CONSTRAINT project_cache_cache_fkey FOREIGN KEY (cache) REFERENCES gradient.cache(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.project_cache
    ADD CONSTRAINT project_cache_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.project_trusted_key
    ADD CONSTRAINT project_trusted_key_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.pushed_path
    ADD CONSTRAINT pushed_path_cache_fkey FOREIGN KEY (cache) REFERENCES gradient.cache(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.ready_build
    ADD CONSTRAINT ready_build_class_fkey FOREIGN KEY (class) REFERENCES gradient.build_class(id);

ALTER TABLE ONLY gradient.ready_build
    ADD CONSTRAINT ready_build_derivation_build_fkey FOREIGN KEY (derivation_build) REFERENCES gradient.derivation_build(derivation) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.ready_build
    ADD CONSTRAINT ready_build_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.task_flake_input_override
    ADD CONSTRAINT task_flake_input_override_task_fkey FOREIGN KEY (task) REFERENCES gradient.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.task
    ADD CONSTRAINT task_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.task_trigger
    ADD CONSTRAINT task_trigger_task_fkey FOREIGN KEY (task) REFERENCES gradient.task(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.team_project
    ADD CONSTRAINT team_project_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.team_project
    ADD CONSTRAINT team_project_team_fkey FOREIGN KEY (team) REFERENCES gradient.team(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.team_worker
    ADD CONSTRAINT team_worker_team_fkey FOREIGN KEY (team) REFERENCES gradient.team(id) ON DELETE CASCADE;

ALTER TABLE ONLY gradient.worker_registration
    ADD CONSTRAINT worker_registration_project_fkey FOREIGN KEY (project) REFERENCES gradient.project(id) ON DELETE CASCADE;
