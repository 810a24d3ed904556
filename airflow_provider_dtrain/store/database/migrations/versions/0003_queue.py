"""Queue counters, claims, reservations and preemption, held gangs, recovery, and epochs of streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0003"
down_revision = "0002"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0002"

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True)
AirflowId = sa.String(250)
_TASK = ("dag_id", "run_id", "task_id", "map_index", "max_tries")


def _seconds(name: str, default: float = 0.0) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, server_default=str(default))


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def _time(name: str) -> sa.Column[Any]:
    return sa.Column(name, UtcDateTime(), nullable=True)


#: Table -> function that returns its new columns.
_NEW: dict[str, Callable[[], list[sa.Column[Any]]]] = {
    "pools": lambda: [
        _seconds("max_wait_s", 129_600.0),
        _seconds("protected_share", 0.6),
        _seconds("fresh_s", 7200.0),
        _seconds("young_s", 28_800.0),
        _seconds("min_run_s", 1800.0),
    ],
    "hosts": lambda: [_time("probed_at")],
    "experiments": lambda: [_seconds("weight", 1.0), sa.Column("max_slots", sa.Integer)],
    "trials": lambda: [_time("pause_requested_at"), sa.Column("pause_requested_by", sa.Text)],
    "allocations": lambda: [
        sa.Column("position", sa.Integer),
        _seconds("held_s"),
        _seconds("waited_s"),
        _time("eligible_since"),
        _flag("paused"),
        sa.Column("max_runtime_s", sa.Float),
        sa.Column("claim", Json),
        sa.Column("reserved_hosts", Json),
        _time("expected_at"),
        sa.Column("expected", sa.Text, nullable=False, server_default=""),
        sa.Column("preemptible", sa.Boolean),
        _flag("has_checkpoint"),
        sa.Column("cost_s", sa.Float),
        _time("preempted_at"),
        sa.Column("preempted_for", Id),
        _time("recovering_until"),
        sa.Column("recoverer", sa.Text),
    ],
    "streams": lambda: [sa.Column("epoch", sa.Integer, nullable=False, server_default="0")],
}


def upgrade() -> None:
    for table, columns in _NEW.items():
        with op.batch_alter_table(table) as batch:
            for column in columns():
                batch.add_column(column)
            if table == "allocations":
                batch.alter_column("trial_id", existing_type=Id, nullable=True)
                batch.create_foreign_key("fk_allocations_preempted_for", "allocations", ["preempted_for"], ["id"])
    op.create_table(
        "gangs",
        sa.Column("allocation_id", Id, sa.ForeignKey("allocations.id"), primary_key=True, autoincrement=False),
        sa.Column("dag_id", AirflowId, nullable=False),
        sa.Column("run_id", AirflowId, nullable=False),
        sa.Column("task_id", AirflowId, nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("max_tries", sa.Integer, nullable=False),
        _seconds("hold_for_s", 900.0),
        _time("held_until"),
        sa.Column("watch", sa.Integer, nullable=False),
        sa.Column("watcher", sa.Text),
        sa.Column("ended_because", sa.Text),
        sa.Column("attempt_id", Id),
        sa.Column("unclear", Json, nullable=False),
    )
    op.create_index("ix_gangs_dag_id_run_id_task_id_map_index", "gangs", ["dag_id", "run_id", "task_id", "map_index"])


def downgrade() -> None:
    op.drop_table("gangs")
    _forget_what_is_new()
    for table, columns in reversed(_NEW.items()):
        with op.batch_alter_table(table) as batch:
            if table == "allocations":
                batch.drop_constraint("fk_allocations_preempted_for", type_="foreignkey")
                batch.alter_column("trial_id", existing_type=Id, nullable=False)
            for column in columns():
                batch.drop_column(column.name)


def _forget_what_is_new() -> None:
    """Convert rows to states that the older code knows."""
    op.execute("UPDATE allocations SET preempted_for = NULL")
    op.execute("UPDATE attempts SET state = 'lost' WHERE state = 'preempted'")
    op.execute("UPDATE trials SET state = 'queued' WHERE state = 'paused'")
    # A held gang is assigned to the last trial that used it, and deleted if no trial did.
    last = "SELECT max(trial_id) FROM attempts WHERE attempts.allocation_id = allocations.id"
    op.execute(f"UPDATE allocations SET trial_id = ({last}) WHERE trial_id IS NULL")  # noqa: S608
    held = "SELECT id FROM allocations WHERE trial_id IS NULL"
    op.execute(f"DELETE FROM allocation_slots WHERE allocation_id IN ({held})")  # noqa: S608
    op.execute("DELETE FROM allocations WHERE trial_id IS NULL")
