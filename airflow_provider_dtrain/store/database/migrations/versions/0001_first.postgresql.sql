CREATE TABLE meta (
    key VARCHAR(63) NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_meta PRIMARY KEY (key)
);

CREATE TABLE counters (
    name VARCHAR(63) NOT NULL,
    value BIGINT NOT NULL,
    CONSTRAINT pk_counters PRIMARY KEY (name)
);

CREATE TABLE audit (
    id BIGSERIAL NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    by TEXT NOT NULL,
    action VARCHAR(63) NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);

CREATE TABLE templates (
    name VARCHAR(63) NOT NULL,
    version INTEGER NOT NULL,
    text TEXT NOT NULL,
    set_by TEXT NOT NULL,
    set_at TIMESTAMP WITH TIME ZONE NOT NULL,
    removed BOOLEAN NOT NULL,
    CONSTRAINT pk_templates PRIMARY KEY (name, version)
);

CREATE TABLE configs (
    config_id BIGSERIAL NOT NULL,
    digest VARCHAR(64) NOT NULL,
    document JSON NOT NULL,
    origins JSON NOT NULL,
    template VARCHAR(63),
    template_version INTEGER,
    secrets BYTEA,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_configs PRIMARY KEY (config_id),
    CONSTRAINT uq_configs_digest UNIQUE (digest)
);

CREATE TABLE payloads (
    digest VARCHAR(64) NOT NULL,
    content BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_payloads PRIMARY KEY (digest)
);

CREATE TABLE manifests (
    digest VARCHAR(64) NOT NULL,
    content JSON NOT NULL,
    CONSTRAINT pk_manifests PRIMARY KEY (digest)
);

CREATE TABLE pools (
    name VARCHAR(63) NOT NULL,
    slot_type VARCHAR(8) NOT NULL,
    fit VARCHAR(8) NOT NULL,
    allow_heterogeneous BOOLEAN NOT NULL,
    reservations INTEGER NOT NULL,
    preemption VARCHAR(8) NOT NULL,
    max_wait_s FLOAT DEFAULT '122400.0' NOT NULL,
    protected_share FLOAT DEFAULT '0.65' NOT NULL,
    fresh_s FLOAT DEFAULT '14400.0' NOT NULL,
    young_s FLOAT DEFAULT '115200.0' NOT NULL,
    min_run_s FLOAT DEFAULT '1800.0' NOT NULL,
    defaults JSON NOT NULL,
    containers JSON NOT NULL,
    host_check VARCHAR(8) DEFAULT 'off' NOT NULL,
    host_check_every_s FLOAT DEFAULT '86400.0' NOT NULL,
    backend VARCHAR(16) DEFAULT 'hosts' NOT NULL,
    scheduler JSON NOT NULL,
    scheduler_facts JSON,
    polled_at TIMESTAMP WITH TIME ZONE,
    polling_until TIMESTAMP WITH TIME ZONE,
    poll_every_s FLOAT DEFAULT '1.0' NOT NULL,
    version BIGINT NOT NULL,
    passed_version BIGINT NOT NULL,
    next_due_at TIMESTAMP WITH TIME ZONE,
    waiting INTEGER NOT NULL,
    CONSTRAINT pk_pools PRIMARY KEY (name)
);

CREATE TABLE experiments (
    id BIGSERIAL NOT NULL,
    dag_id VARCHAR(250) NOT NULL,
    run_id VARCHAR(250) NOT NULL,
    name VARCHAR(250) NOT NULL,
    state VARCHAR(16) NOT NULL,
    weight FLOAT DEFAULT '1.0' NOT NULL,
    max_slots INTEGER,
    control_request VARCHAR(63),
    requested_by TEXT,
    owner TEXT NOT NULL,
    project VARCHAR(128) NOT NULL,
    archived BOOLEAN NOT NULL,
    delete_requested_at TIMESTAMP WITH TIME ZONE,
    delete_requested_by TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_experiments PRIMARY KEY (id),
    CONSTRAINT uq_experiments_dag_id_run_id_name UNIQUE (dag_id, run_id, name)
);

CREATE TABLE labels (
    kind VARCHAR(16) NOT NULL,
    object_id BIGINT NOT NULL,
    display_name VARCHAR(250),
    description TEXT NOT NULL,
    CONSTRAINT pk_labels PRIMARY KEY (kind, object_id)
);

CREATE TABLE tags (
    kind VARCHAR(16) NOT NULL,
    object_id BIGINT NOT NULL,
    tag VARCHAR(63) NOT NULL,
    CONSTRAINT pk_tags PRIMARY KEY (kind, object_id, tag)
);

CREATE INDEX ix_tags_tag ON tags (kind, tag, object_id);

CREATE TABLE comments (
    id BIGSERIAL NOT NULL,
    kind VARCHAR(16) NOT NULL,
    object_id BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    user_id VARCHAR(250) NOT NULL,
    by VARCHAR(250) NOT NULL,
    text TEXT NOT NULL,
    CONSTRAINT pk_comments PRIMARY KEY (id)
);

CREATE INDEX ix_comments_object ON comments (kind, object_id, id);

CREATE TABLE run_views (
    id BIGSERIAL NOT NULL,
    name VARCHAR(100) NOT NULL,
    owner_id VARCHAR(250) NOT NULL,
    owner TEXT NOT NULL,
    is_shared BOOLEAN NOT NULL,
    definition JSON NOT NULL,
    changed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_run_views PRIMARY KEY (id),
    CONSTRAINT uq_run_views_owner_id_name UNIQUE (owner_id, name)
);

CREATE TABLE payload_senders (
    digest VARCHAR(64) NOT NULL,
    user_id VARCHAR(250) NOT NULL,
    CONSTRAINT pk_payload_senders PRIMARY KEY (digest, user_id),
    CONSTRAINT fk_payload_senders_digest FOREIGN KEY(digest) REFERENCES payloads (digest) ON DELETE CASCADE
);

CREATE TABLE submissions (
    dag_id VARCHAR(250) NOT NULL,
    run_id VARCHAR(250) NOT NULL,
    config_id BIGINT NOT NULL,
    payload VARCHAR(64),
    user_id TEXT,
    reproduces BIGINT,
    fork_of BIGINT,
    git JSON,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_submissions PRIMARY KEY (dag_id, run_id),
    CONSTRAINT fk_submissions_config_id FOREIGN KEY(config_id) REFERENCES configs (config_id)
);

CREATE INDEX ix_submissions_reproduces ON submissions (reproduces);

CREATE TABLE searches (
    id BIGSERIAL NOT NULL,
    experiment_id BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    dag_id VARCHAR(250) NOT NULL,
    run_id VARCHAR(250) NOT NULL,
    task_id VARCHAR(250) NOT NULL,
    map_index INTEGER NOT NULL,
    max_tries INTEGER NOT NULL,
    config_id BIGINT NOT NULL,
    method VARCHAR(63) NOT NULL,
    metric TEXT,
    smaller_is_better BOOLEAN NOT NULL,
    divisor INTEGER NOT NULL,
    seed BIGINT NOT NULL,
    rungs JSON NOT NULL,
    max_trials INTEGER NOT NULL,
    max_concurrent_trials INTEGER NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    announced JSON,
    CONSTRAINT pk_searches PRIMARY KEY (id),
    CONSTRAINT uq_searches_dag_id_run_id_task_id_map_index_max_tries UNIQUE (dag_id, run_id, task_id, map_index, max_tries),
    CONSTRAINT uq_searches_experiment_id_generation UNIQUE (experiment_id, generation),
    CONSTRAINT fk_searches_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id),
    CONSTRAINT fk_searches_config_id FOREIGN KEY(config_id) REFERENCES configs (config_id)
);

CREATE TABLE trials (
    id BIGSERIAL NOT NULL,
    experiment_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    dag_id VARCHAR(250) NOT NULL,
    run_id VARCHAR(250) NOT NULL,
    task_id VARCHAR(250) NOT NULL,
    map_index INTEGER NOT NULL,
    max_tries INTEGER NOT NULL,
    trial_index INTEGER NOT NULL,
    config_id BIGINT NOT NULL,
    payload VARCHAR(64),
    source JSON,
    hparams JSON NOT NULL,
    seed BIGINT NOT NULL,
    state VARCHAR(16) NOT NULL,
    restarts INTEGER NOT NULL,
    max_restarts INTEGER NOT NULL,
    excluded JSON NOT NULL,
    kill_requested_at TIMESTAMP WITH TIME ZONE,
    kill_requested_by TEXT,
    pause_requested_at TIMESTAMP WITH TIME ZONE,
    pause_requested_by TEXT,
    stop_requested_at TIMESTAMP WITH TIME ZONE,
    stop_requested_by TEXT,
    search_id BIGINT,
    bracket INTEGER DEFAULT '0' NOT NULL,
    draw INTEGER DEFAULT '0' NOT NULL,
    is_drawn BOOLEAN DEFAULT true NOT NULL,
    best_metric FLOAT,
    best_step BIGINT,
    cleared_at TIMESTAMP WITH TIME ZONE,
    failure JSON,
    result JSON,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_trials PRIMARY KEY (id),
    CONSTRAINT uq_trials_dag_id_run_id_task_id_map_index_max_tries_trial_index UNIQUE (dag_id, run_id, task_id, map_index, max_tries, trial_index),
    CONSTRAINT fk_trials_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id),
    CONSTRAINT fk_trials_config_id FOREIGN KEY(config_id) REFERENCES configs (config_id),
    CONSTRAINT fk_trials_payload FOREIGN KEY(payload) REFERENCES payloads (digest),
    CONSTRAINT fk_trials_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);

CREATE INDEX ix_trials_experiment_id ON trials (experiment_id, number);

CREATE INDEX ix_trials_search_id ON trials (search_id, number);

CREATE INDEX ix_trials_summary ON trials (experiment_id, state, cleared_at, search_id, best_metric, ended_at, is_drawn, draw);

CREATE INDEX ix_trials_live ON trials (state) WHERE ended_at IS NULL;

CREATE INDEX ix_trials_payload ON trials (payload, ended_at);

CREATE INDEX ix_trials_best ON trials (search_id, best_metric, number);

CREATE TABLE allocations (
    id BIGSERIAL NOT NULL,
    trial_id BIGINT,
    pool VARCHAR(63) NOT NULL,
    backend VARCHAR(16) DEFAULT 'hosts' NOT NULL,
    slots INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    is_single_host BOOLEAN NOT NULL,
    on_unplaceable VARCHAR(8) NOT NULL,
    state VARCHAR(16) NOT NULL,
    sequence BIGINT NOT NULL,
    token BIGINT,
    reason TEXT NOT NULL,
    reason_since_s FLOAT,
    reason_entries INTEGER DEFAULT '0' NOT NULL,
    unplaceable BOOLEAN NOT NULL,
    never_fits BOOLEAN NOT NULL,
    position INTEGER,
    submitted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    renewed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    granted_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    held_s FLOAT DEFAULT '0.0' NOT NULL,
    waited_s FLOAT DEFAULT '0.0' NOT NULL,
    eligible_since TIMESTAMP WITH TIME ZONE,
    paused BOOLEAN DEFAULT false NOT NULL,
    max_runtime_s FLOAT,
    claim JSON,
    reserved_hosts JSON,
    expected_at TIMESTAMP WITH TIME ZONE,
    expected TEXT DEFAULT '' NOT NULL,
    preemptible BOOLEAN,
    has_checkpoint BOOLEAN DEFAULT false NOT NULL,
    cost_s FLOAT,
    preempted_at TIMESTAMP WITH TIME ZONE,
    preempted_for BIGINT,
    recovering_until TIMESTAMP WITH TIME ZONE,
    recoverer TEXT,
    CONSTRAINT pk_allocations PRIMARY KEY (id),
    CONSTRAINT fk_allocations_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
    CONSTRAINT fk_allocations_preempted_for FOREIGN KEY(preempted_for) REFERENCES allocations (id)
);

CREATE INDEX ix_allocations_trial_id ON allocations (trial_id);

CREATE INDEX ix_allocations_never_fits ON allocations (trial_id) WHERE never_fits AND state = 'waiting';

CREATE INDEX ix_allocations_pool_state ON allocations (pool, state, priority, sequence);

CREATE TABLE timeline (
    id BIGSERIAL NOT NULL,
    trial_id BIGINT NOT NULL,
    attempt_id BIGINT,
    kind VARCHAR(32) NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE,
    host VARCHAR(63),
    by TEXT,
    words TEXT NOT NULL,
    value BIGINT,
    merged INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_timeline PRIMARY KEY (id),
    CONSTRAINT fk_timeline_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);

CREATE INDEX ix_timeline_trial_id ON timeline (trial_id, id);

CREATE TABLE notifications (
    id BIGSERIAL NOT NULL,
    trial_id BIGINT,
    search_id BIGINT,
    event VARCHAR(16) NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    done_at TIMESTAMP WITH TIME ZONE,
    error TEXT NOT NULL,
    CONSTRAINT pk_notifications PRIMARY KEY (id),
    CONSTRAINT uq_notifications_trial_id_event UNIQUE (trial_id, event),
    CONSTRAINT uq_notifications_search_id_event UNIQUE (search_id, event),
    CONSTRAINT fk_notifications_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
    CONSTRAINT fk_notifications_search_id FOREIGN KEY(search_id) REFERENCES searches (id)
);

CREATE TABLE operations (
    id BIGSERIAL NOT NULL,
    kind VARCHAR(16) NOT NULL,
    trial_id BIGINT,
    arguments JSON NOT NULL,
    by TEXT NOT NULL,
    through VARCHAR(16) NOT NULL,
    dag_run TEXT,
    state VARCHAR(16) NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    alive_at TIMESTAMP WITH TIME ZONE,
    size_bytes BIGINT NOT NULL,
    read_bytes BIGINT NOT NULL,
    read_at TIMESTAMP WITH TIME ZONE NOT NULL,
    result JSON,
    error TEXT,
    CONSTRAINT pk_operations PRIMARY KEY (id),
    CONSTRAINT fk_operations_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);

CREATE INDEX ix_operations_state ON operations (state, trial_id);

CREATE TABLE latest_metrics (
    trial_id BIGINT NOT NULL,
    validation JSON NOT NULL,
    training JSON NOT NULL,
    CONSTRAINT pk_latest_metrics PRIMARY KEY (trial_id),
    CONSTRAINT fk_latest_metrics_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);

CREATE TABLE external_jobs (
    id BIGSERIAL NOT NULL,
    allocation_id BIGINT NOT NULL,
    pool VARCHAR(63) NOT NULL,
    name VARCHAR(128) NOT NULL,
    number VARCHAR(64),
    phase VARCHAR(16) NOT NULL,
    reason TEXT NOT NULL,
    is_hopeless BOOLEAN NOT NULL,
    nodes JSON NOT NULL,
    hosts JSON NOT NULL,
    access BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    ends_at TIMESTAMP WITH TIME ZONE,
    expected_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    "end" JSON,
    asked_back TEXT,
    cancelled_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_external_jobs PRIMARY KEY (id),
    CONSTRAINT fk_external_jobs_allocation_id FOREIGN KEY(allocation_id) REFERENCES allocations (id),
    CONSTRAINT uq_external_jobs_name UNIQUE (name)
);

CREATE INDEX ix_external_jobs_live ON external_jobs (pool) WHERE phase != 'ended';

CREATE INDEX ix_external_jobs_allocation_id ON external_jobs (allocation_id);

CREATE TABLE gangs (
    allocation_id BIGINT NOT NULL,
    dag_id VARCHAR(250) NOT NULL,
    run_id VARCHAR(250) NOT NULL,
    task_id VARCHAR(250) NOT NULL,
    map_index INTEGER NOT NULL,
    max_tries INTEGER NOT NULL,
    hold_for_s FLOAT DEFAULT '900.0' NOT NULL,
    held_until TIMESTAMP WITH TIME ZONE,
    watch INTEGER NOT NULL,
    watcher TEXT,
    ended_because TEXT,
    attempt_id BIGINT,
    unclear JSON NOT NULL,
    CONSTRAINT pk_gangs PRIMARY KEY (allocation_id),
    CONSTRAINT fk_gangs_allocation_id FOREIGN KEY(allocation_id) REFERENCES allocations (id)
);

CREATE INDEX ix_gangs_dag_id_run_id_task_id_map_index ON gangs (dag_id, run_id, task_id, map_index);

CREATE TABLE allocation_slots (
    id BIGSERIAL NOT NULL,
    allocation_id BIGINT NOT NULL,
    token BIGINT NOT NULL,
    host VARCHAR(63) NOT NULL,
    slot INTEGER NOT NULL,
    released_at TIMESTAMP WITH TIME ZONE,
    proof VARCHAR(16),
    CONSTRAINT pk_allocation_slots PRIMARY KEY (id),
    CONSTRAINT fk_allocation_slots_allocation_id FOREIGN KEY(allocation_id) REFERENCES allocations (id)
);

CREATE INDEX ix_allocation_slots_live ON allocation_slots (host, allocation_id) WHERE released_at IS NULL;

CREATE INDEX ix_allocation_slots_allocation_id ON allocation_slots (allocation_id, token);

CREATE UNIQUE INDEX uq_allocation_slots_held ON allocation_slots (host, slot) WHERE released_at IS NULL AND slot >= 0;

CREATE INDEX ix_allocation_slots_past ON allocation_slots (host, slot, released_at) WHERE released_at IS NOT NULL;

CREATE TABLE attempts (
    id BIGSERIAL NOT NULL,
    trial_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    allocation_id BIGINT NOT NULL,
    state VARCHAR(16) NOT NULL,
    watch INTEGER NOT NULL,
    watcher TEXT,
    renewed_at TIMESTAMP WITH TIME ZONE,
    plan JSON,
    master JSON,
    reason TEXT NOT NULL,
    failure JSON,
    result JSON,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    log_closed BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_attempts PRIMARY KEY (id),
    CONSTRAINT uq_attempts_trial_id_number UNIQUE (trial_id, number),
    CONSTRAINT fk_attempts_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
    CONSTRAINT fk_attempts_allocation_id FOREIGN KEY(allocation_id) REFERENCES allocations (id)
);

CREATE INDEX ix_attempts_allocation_id ON attempts (allocation_id);

CREATE INDEX ix_attempts_live ON attempts (trial_id) WHERE ended_at IS NULL;

CREATE TABLE operation_pieces (
    operation_id BIGINT NOT NULL,
    start BIGINT NOT NULL,
    content BYTEA NOT NULL,
    CONSTRAINT pk_operation_pieces PRIMARY KEY (operation_id, start),
    CONSTRAINT fk_operation_pieces_operation_id FOREIGN KEY(operation_id) REFERENCES operations (id)
);

CREATE TABLE hosts (
    name VARCHAR(63) NOT NULL,
    pool VARCHAR(63) NOT NULL,
    slot_type VARCHAR(8) NOT NULL,
    slot_count INTEGER NOT NULL,
    conn_id VARCHAR(250),
    address TEXT,
    python TEXT NOT NULL,
    remote_dir TEXT NOT NULL,
    state_dir TEXT,
    lock_dir TEXT,
    host_key TEXT,
    external_job_id BIGINT,
    node INTEGER,
    variables JSON,
    state VARCHAR(16) NOT NULL,
    state_reason TEXT NOT NULL,
    state_since TIMESTAMP WITH TIME ZONE,
    drain_by TIMESTAMP WITH TIME ZONE,
    drain_kills BOOLEAN DEFAULT false NOT NULL,
    facts JSON NOT NULL,
    facts_at TIMESTAMP WITH TIME ZONE,
    findings TEXT DEFAULT '' NOT NULL,
    probed_at TIMESTAMP WITH TIME ZONE,
    machine_id VARCHAR(128),
    boot_id VARCHAR(128),
    pid_ns VARCHAR(128),
    CONSTRAINT pk_hosts PRIMARY KEY (name),
    CONSTRAINT uq_hosts_machine_id_boot_id_pid_ns UNIQUE (machine_id, boot_id, pid_ns),
    CONSTRAINT fk_hosts_pool FOREIGN KEY(pool) REFERENCES pools (name),
    CONSTRAINT fk_hosts_external_job_id FOREIGN KEY(external_job_id) REFERENCES external_jobs (id)
);

CREATE INDEX ix_hosts_pool ON hosts (pool);

CREATE TABLE launches (
    attempt_id BIGINT NOT NULL,
    lock JSON,
    hosts JSON NOT NULL,
    CONSTRAINT pk_launches PRIMARY KEY (attempt_id),
    CONSTRAINT fk_launches_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE TABLE streams (
    attempt_id BIGINT NOT NULL,
    token BIGINT NOT NULL,
    host VARCHAR(63) NOT NULL,
    stream VARCHAR(63) NOT NULL,
    position BIGINT NOT NULL,
    epoch INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_streams PRIMARY KEY (attempt_id, token, host, stream),
    CONSTRAINT fk_streams_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE TABLE events (
    id BIGSERIAL NOT NULL,
    attempt_id BIGINT NOT NULL,
    token BIGINT NOT NULL,
    host VARCHAR(63) NOT NULL,
    stream VARCHAR(63) NOT NULL,
    seq BIGINT,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    kind VARCHAR(63) NOT NULL,
    body JSON NOT NULL,
    CONSTRAINT pk_events PRIMARY KEY (id),
    CONSTRAINT fk_events_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_events_attempt_id ON events (attempt_id, kind);

CREATE TABLE ranks (
    attempt_id BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    host VARCHAR(63) NOT NULL,
    local_rank INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    pid BIGINT,
    exit_code INTEGER,
    exited_at TIMESTAMP WITH TIME ZONE,
    error JSON,
    runtime JSON,
    sent_signal BOOLEAN NOT NULL,
    log_tail BYTEA,
    log_end BIGINT,
    CONSTRAINT pk_ranks PRIMARY KEY (attempt_id, rank),
    CONSTRAINT fk_ranks_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE TABLE metrics (
    id BIGSERIAL NOT NULL,
    trial_id BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    metric_group VARCHAR(16) NOT NULL,
    step BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    epoch FLOAT,
    metrics JSON NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_metrics PRIMARY KEY (id),
    CONSTRAINT fk_metrics_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
    CONSTRAINT fk_metrics_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_metrics_trial_id ON metrics (trial_id, metric_group, step);

CREATE INDEX ix_metrics_attempt_id ON metrics (attempt_id, metric_group, step);

CREATE TABLE checkpoints (
    id BIGSERIAL NOT NULL,
    trial_id BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    run VARCHAR(63) NOT NULL,
    host VARCHAR(63) NOT NULL,
    step BIGINT NOT NULL,
    path TEXT NOT NULL,
    size_bytes BIGINT,
    sha256 VARCHAR(64),
    metrics JSON NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    copy_url TEXT,
    removed_at TIMESTAMP WITH TIME ZONE,
    refused TEXT,
    CONSTRAINT pk_checkpoints PRIMARY KEY (id),
    CONSTRAINT fk_checkpoints_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
    CONSTRAINT fk_checkpoints_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_checkpoints_trial_id ON checkpoints (trial_id, step);

CREATE TABLE rung_entries (
    id BIGSERIAL NOT NULL,
    search_id BIGINT NOT NULL,
    bracket INTEGER NOT NULL,
    rung INTEGER NOT NULL,
    trial_id BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    metric FLOAT,
    units BIGINT NOT NULL,
    rank_value FLOAT NOT NULL,
    decision VARCHAR(16),
    place INTEGER,
    entries INTEGER,
    cutoff FLOAT,
    is_error BOOLEAN NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    left_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_rung_entries PRIMARY KEY (id),
    CONSTRAINT uq_rung_entries_trial_id_rung UNIQUE (trial_id, rung),
    CONSTRAINT fk_rung_entries_search_id FOREIGN KEY(search_id) REFERENCES searches (id),
    CONSTRAINT fk_rung_entries_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
    CONSTRAINT fk_rung_entries_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_rung_entries_rank ON rung_entries (search_id, bracket, rung, rank_value, left_at) WHERE left_at IS NULL;

CREATE TABLE telemetry_hosts (
    attempt_id BIGINT NOT NULL,
    token BIGINT NOT NULL,
    host VARCHAR(63) NOT NULL,
    commits BIGINT NOT NULL,
    positions JSON NOT NULL,
    gaps JSON NOT NULL,
    first_s BIGINT NOT NULL,
    last_s BIGINT NOT NULL,
    utilization BYTEA NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_telemetry_hosts PRIMARY KEY (attempt_id, token, host),
    CONSTRAINT fk_telemetry_hosts_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_telemetry_hosts_host ON telemetry_hosts (host, updated_at);

CREATE TABLE telemetry_chunks (
    id BIGSERIAL NOT NULL,
    attempt_id BIGINT NOT NULL,
    token BIGINT NOT NULL,
    host VARCHAR(63) NOT NULL,
    metric VARCHAR(63) NOT NULL,
    step_s INTEGER NOT NULL,
    start_s BIGINT NOT NULL,
    end_s BIGINT NOT NULL,
    data BYTEA NOT NULL,
    CONSTRAINT pk_telemetry_chunks PRIMARY KEY (id),
    CONSTRAINT fk_telemetry_chunks_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_telemetry_chunks_age ON telemetry_chunks (step_s, end_s);

CREATE INDEX ix_telemetry_chunks_attempt_id ON telemetry_chunks (attempt_id, metric, step_s, start_s);

CREATE TABLE stragglers (
    id BIGSERIAL NOT NULL,
    attempt_id BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    host VARCHAR(63) NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    named_at TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE,
    ratio FLOAT NOT NULL,
    cost FLOAT NOT NULL,
    cause VARCHAR(32) NOT NULL,
    text TEXT NOT NULL,
    advice TEXT NOT NULL,
    CONSTRAINT pk_stragglers PRIMARY KEY (id),
    CONSTRAINT fk_stragglers_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE INDEX ix_stragglers_named_at ON stragglers (named_at, host);

CREATE INDEX ix_stragglers_attempt_id ON stragglers (attempt_id, rank);

CREATE TABLE log_copies (
    attempt_id BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    "end" BIGINT NOT NULL,
    lines BIGINT NOT NULL,
    stored_bytes BIGINT NOT NULL,
    is_complete BOOLEAN NOT NULL,
    read_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_log_copies PRIMARY KEY (attempt_id, rank),
    CONSTRAINT fk_log_copies_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE TABLE log_chunks (
    attempt_id BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    start BIGINT NOT NULL,
    "end" BIGINT NOT NULL,
    first_line BIGINT NOT NULL,
    lines INTEGER NOT NULL,
    content BYTEA NOT NULL,
    samples JSON NOT NULL,
    CONSTRAINT pk_log_chunks PRIMARY KEY (attempt_id, rank, start),
    CONSTRAINT fk_log_chunks_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE TABLE host_states (
    id BIGSERIAL NOT NULL,
    host VARCHAR(63) NOT NULL,
    state VARCHAR(16) NOT NULL,
    reason TEXT NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_host_states PRIMARY KEY (id),
    CONSTRAINT fk_host_states_host FOREIGN KEY(host) REFERENCES hosts (name) ON DELETE CASCADE
);

CREATE INDEX ix_host_states_host ON host_states (host, until);

CREATE TABLE slots (
    host VARCHAR(63) NOT NULL,
    slot INTEGER NOT NULL,
    device TEXT,
    device_name TEXT,
    memory_bytes BIGINT,
    enabled BOOLEAN NOT NULL,
    state VARCHAR(16) NOT NULL,
    note TEXT,
    CONSTRAINT pk_slots PRIMARY KEY (host, slot),
    CONSTRAINT fk_slots_host FOREIGN KEY(host) REFERENCES hosts (name) ON DELETE CASCADE
);

CREATE TABLE host_rates (
    id BIGSERIAL NOT NULL,
    host VARCHAR(63) NOT NULL,
    metric VARCHAR(16) NOT NULL,
    kind VARCHAR(200) NOT NULL,
    slot INTEGER,
    peer VARCHAR(63),
    value FLOAT NOT NULL,
    spread FLOAT NOT NULL,
    finding TEXT,
    names VARCHAR(8),
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_host_rates PRIMARY KEY (id),
    CONSTRAINT fk_host_rates_host FOREIGN KEY(host) REFERENCES hosts (name) ON DELETE CASCADE
);

CREATE INDEX ix_host_rates_host ON host_rates (host, at);

CREATE INDEX ix_host_rates_kind ON host_rates (metric, kind, at);
