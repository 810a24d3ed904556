"""Searches, rung entries of their trials, and control requests to experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0004"
down_revision = "0003"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True)
Name = sa.String(63)
AirflowId = sa.String(250)


def _id() -> sa.Column[int]:
    return sa.Column("id", Id, primary_key=True, autoincrement=True)


def _ref(name: str, target: str) -> sa.Column[int]:
    return sa.Column(name, Id, sa.ForeignKey(target), nullable=False)


def _int(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)


def _time(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, UtcDateTime(), nullable=nullable)


#: Table -> function that returns its new columns.
_NEW: dict[str, Callable[[], list[sa.Column[Any]]]] = {
    "experiments": lambda: [sa.Column("wish", Name), sa.Column("wished_by", sa.Text)],
    "trials": lambda: [
        _time("stop_requested_at"),
        sa.Column("stop_requested_by", sa.Text),
        sa.Column("search_id", Id),
        sa.Column("bracket", sa.Integer, nullable=False, server_default="0"),
        sa.Column("draw", sa.Integer, nullable=False, server_default="0"),
        sa.Column("is_drawn", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("best_metric", sa.Float),
        sa.Column("best_step", sa.BigInteger),
        _time("cleared_at"),
    ],
}


def upgrade() -> None:
    _create_searches()
    for table, columns in _NEW.items():
        with op.batch_alter_table(table) as batch:
            for column in columns():
                batch.add_column(column)
            if table == "trials":
                batch.create_foreign_key("fk_trials_search_id", "searches", ["search_id"], ["id"])
    op.create_index("ix_trials_search_id", "trials", ["search_id", "number"])
    _create_rung_entries()
    same = " AND ".join(f"newer.{name} = trials.{name}" for name in ("dag_id", "run_id", "task_id", "map_index"))
    newer = f"SELECT min(newer.created_at) FROM trials AS newer WHERE {same} AND newer.id > trials.id"  # noqa: S608
    op.execute(f"UPDATE trials SET cleared_at = ({newer})")  # noqa: S608


def _create_searches() -> None:
    op.create_table(
        "searches",
        _id(),
        _ref("experiment_id", "experiments.id"),
        _int("generation"),
        sa.Column("dag_id", AirflowId, nullable=False),
        sa.Column("run_id", AirflowId, nullable=False),
        sa.Column("task_id", AirflowId, nullable=False),
        _int("map_index"),
        _int("max_tries"),
        _ref("config_id", "configs.config_id"),
        sa.Column("method", Name, nullable=False),
        sa.Column("metric", sa.Text),
        _flag("smaller_is_better"),
        _int("divisor"),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("rungs", Json, nullable=False),
        _int("max_trials"),
        _int("max_concurrent_trials"),
        _time("created_at", nullable=False),
        _time("ended_at"),
        sa.UniqueConstraint("dag_id", "run_id", "task_id", "map_index", "max_tries"),
        sa.UniqueConstraint("experiment_id", "generation"),
    )


def _create_rung_entries() -> None:
    op.create_table(
        "rung_entries",
        _id(),
        _ref("search_id", "searches.id"),
        _int("bracket"),
        _int("rung"),
        _ref("trial_id", "trials.id"),
        _ref("attempt_id", "attempts.id"),
        sa.Column("metric", sa.Float),
        sa.Column("units", sa.BigInteger, nullable=False),
        sa.Column("rank_value", sa.Float, nullable=False),
        sa.Column("decision", sa.String(16)),
        _flag("is_error"),
        _time("at", nullable=False),
        _time("left_at"),
        sa.UniqueConstraint("trial_id", "rung"),
    )
    counts = sa.text("left_at IS NULL")
    columns = ["search_id", "bracket", "rung", "rank_value", "left_at"]
    op.create_index("ix_rung_entries_rank", "rung_entries", columns, sqlite_where=counts, postgresql_where=counts)


def downgrade() -> None:
    op.drop_table("rung_entries")
    op.drop_index("ix_trials_search_id", "trials")
    for table, columns in reversed(_NEW.items()):
        with op.batch_alter_table(table) as batch:
            if table == "trials":
                batch.drop_constraint("fk_trials_search_id", type_="foreignkey")
            for column in columns():
                batch.drop_column(column.name)
    op.drop_table("searches")
