"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0001"
down_revision = None
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0001"

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True)
Time = UtcDateTime()
TABLES = (
    "audit",
    "configs",
    "counters",
    "experiments",
    "meta",
    "payloads",
    "pools",
    "templates",
    "hosts",
    "trials",
    "allocations",
    "slots",
    "allocation_slots",
    "attempts",
    "checkpoints",
    "events",
    "metrics",
    "ranks",
    "streams",
)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=63), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_table(
        "configs",
        sa.Column("config_id", Id, autoincrement=True, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("document", Json, nullable=False),
        sa.Column("origins", Json, nullable=False),
        sa.Column("template", sa.String(length=63), nullable=True),
        sa.Column("template_version", sa.Integer(), nullable=True),
        sa.Column("secrets", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("config_id", name="pk_configs"),
        sa.UniqueConstraint("digest", name="uq_configs_digest"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counters"),
    )
    op.create_table(
        "experiments",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("ended_at", Time, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
        sa.UniqueConstraint("dag_id", "run_id", "name", name="uq_experiments_dag_id_run_id_name"),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=63), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
    op.create_table(
        "payloads",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_payloads"),
    )
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("slot_type", sa.String(length=8), nullable=False),
        sa.Column("fit", sa.String(length=8), nullable=False),
        sa.Column("allow_heterogeneous", sa.Boolean(), nullable=False),
        sa.Column("reservations", sa.Integer(), nullable=False),
        sa.Column("preemption", sa.String(length=8), nullable=False),
        sa.Column("defaults", Json, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("passed_version", sa.BigInteger(), nullable=False),
        sa.Column("next_due_at", Time, nullable=True),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_pools"),
    )
    op.create_table(
        "templates",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("set_at", Time, nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="pk_templates"),
    )
    op.create_table(
        "hosts",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=False),
        sa.Column("slot_type", sa.String(length=8), nullable=False),
        sa.Column("slot_count", sa.Integer(), nullable=False),
        sa.Column("conn_id", sa.String(length=250), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("remote_dir", sa.Text(), nullable=False),
        sa.Column("state_dir", sa.Text(), nullable=True),
        sa.Column("host_key", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("state_since", Time, nullable=True),
        sa.Column("facts", Json, nullable=False),
        sa.Column("facts_at", Time, nullable=True),
        sa.Column("machine_id", sa.String(length=128), nullable=True),
        sa.Column("boot_id", sa.String(length=128), nullable=True),
        sa.Column("pid_ns", sa.String(length=128), nullable=True),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name="fk_hosts_pool"),
        sa.PrimaryKeyConstraint("name", name="pk_hosts"),
        sa.UniqueConstraint("machine_id", "boot_id", "pid_ns", name="uq_hosts_machine_id_boot_id_pid_ns"),
    )
    op.create_index("ix_hosts_pool", "hosts", ["pool"], unique=False)
    op.create_table(
        "trials",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("experiment_id", Id, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("max_tries", sa.Integer(), nullable=False),
        sa.Column("config_id", Id, nullable=False),
        sa.Column("payload", sa.String(length=64), nullable=True),
        sa.Column("hparams", Json, nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("max_restarts", sa.Integer(), nullable=False),
        sa.Column("excluded", Json, nullable=False),
        sa.Column("kill_requested_at", Time, nullable=True),
        sa.Column("kill_requested_by", sa.Text(), nullable=True),
        sa.Column("failure", Json, nullable=True),
        sa.Column("result", Json, nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("ended_at", Time, nullable=True),
        sa.ForeignKeyConstraint(["config_id"], ["configs.config_id"], name="fk_trials_config_id"),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name="fk_trials_experiment_id"),
        sa.ForeignKeyConstraint(["payload"], ["payloads.digest"], name="fk_trials_payload"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint(
            "dag_id",
            "run_id",
            "task_id",
            "map_index",
            "max_tries",
            name="uq_trials_dag_id_run_id_task_id_map_index_max_tries",
        ),
    )
    op.create_index("ix_trials_experiment_id", "trials", ["experiment_id", "number"], unique=False)
    op.create_table(
        "allocations",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("trial_id", Id, nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("is_single_host", sa.Boolean(), nullable=False),
        sa.Column("on_unplaceable", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("unplaceable", sa.Boolean(), nullable=False),
        sa.Column("submitted_at", Time, nullable=False),
        sa.Column("renewed_at", Time, nullable=False),
        sa.Column("granted_at", Time, nullable=True),
        sa.Column("ended_at", Time, nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_allocations_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_allocations"),
    )
    op.create_index("ix_allocations_pool_state", "allocations", ["pool", "state", "priority", "sequence"], unique=False)
    op.create_index("ix_allocations_trial_id", "allocations", ["trial_id"], unique=False)
    op.create_table(
        "slots",
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("device_name", sa.Text(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["host"], ["hosts.name"], name="fk_slots_host", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host", "slot", name="pk_slots"),
    )
    op.create_table(
        "allocation_slots",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("allocation_id", Id, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("released_at", Time, nullable=True),
        sa.Column("proof", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["allocation_id"], ["allocations.id"], name="fk_allocation_slots_allocation_id"),
        sa.PrimaryKeyConstraint("id", name="pk_allocation_slots"),
    )
    op.create_index("ix_allocation_slots_allocation_id", "allocation_slots", ["allocation_id", "token"], unique=False)
    op.create_index(
        "ix_allocation_slots_live",
        "allocation_slots",
        ["host", "allocation_id"],
        unique=False,
        sqlite_where=sa.text("released_at IS NULL"),
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_index(
        "uq_allocation_slots_held",
        "allocation_slots",
        ["host", "slot"],
        unique=True,
        sqlite_where=sa.text("released_at IS NULL AND slot >= 0"),
        postgresql_where=sa.text("released_at IS NULL AND slot >= 0"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("trial_id", Id, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("allocation_id", Id, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("watch", sa.Integer(), nullable=False),
        sa.Column("watcher", sa.Text(), nullable=True),
        sa.Column("renewed_at", Time, nullable=True),
        sa.Column("plan", Json, nullable=True),
        sa.Column("master", Json, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("failure", Json, nullable=True),
        sa.Column("result", Json, nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("started_at", Time, nullable=True),
        sa.Column("ended_at", Time, nullable=True),
        sa.ForeignKeyConstraint(["allocation_id"], ["allocations.id"], name="fk_attempts_allocation_id"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_attempts_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("trial_id", "number", name="uq_attempts_trial_id_number"),
    )
    op.create_index("ix_attempts_allocation_id", "attempts", ["allocation_id"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("trial_id", Id, nullable=False),
        sa.Column("attempt_id", Id, nullable=False),
        sa.Column("run", sa.String(length=63), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("metrics", Json, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.Column("copy_url", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_checkpoints_attempt_id"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_checkpoints_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
    )
    op.create_index("ix_checkpoints_trial_id", "checkpoints", ["trial_id", "step"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("attempt_id", Id, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("stream", sa.String(length=63), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("at", Time, nullable=False),
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_events_attempt_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_attempt_id", "events", ["attempt_id", "kind"], unique=False)
    op.create_table(
        "metrics",
        sa.Column("id", Id, autoincrement=True, nullable=False),
        sa.Column("trial_id", Id, nullable=False),
        sa.Column("attempt_id", Id, nullable=False),
        sa.Column("metric_group", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Float(), nullable=True),
        sa.Column("metrics", Json, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_metrics_attempt_id"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_metrics_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_metrics"),
    )
    op.create_index("ix_metrics_trial_id", "metrics", ["trial_id", "metric_group", "step"], unique=False)
    op.create_table(
        "ranks",
        sa.Column("attempt_id", Id, autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("local_rank", sa.Integer(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("exited_at", Time, nullable=True),
        sa.Column("error", Json, nullable=True),
        sa.Column("sent_signal", sa.Boolean(), nullable=False),
        sa.Column("log_tail", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_ranks_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name="pk_ranks"),
    )
    op.create_table(
        "streams",
        sa.Column("attempt_id", Id, autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("stream", sa.String(length=63), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_streams_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", "token", "host", "stream", name="pk_streams"),
    )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
