"""Telemetry of hosts and ranks: chunks of time series, and the state of each host's telemetry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0009"
down_revision = "0008"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True)
Name = sa.String(63)


def upgrade() -> None:
    op.create_table(
        "telemetry_hosts",
        sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
        sa.Column("token", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("host", Name, primary_key=True),
        sa.Column("commits", sa.BigInteger, nullable=False),
        sa.Column("positions", Json, nullable=False),
        sa.Column("gaps", Json, nullable=False),
        sa.Column("first_s", sa.BigInteger, nullable=False),
        sa.Column("last_s", sa.BigInteger, nullable=False),
        *(sa.Column(f"rolled_{step}_s", sa.BigInteger, nullable=False) for step in (1, 10, 60)),
        sa.Column("utilization", sa.LargeBinary),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("closed_at", UtcDateTime()),
    )
    op.create_index("ix_telemetry_hosts_host", "telemetry_hosts", ["host", "updated_at"])
    is_open = sa.text("closed_at IS NULL")
    op.create_index(
        "ix_telemetry_hosts_open", "telemetry_hosts", ["updated_at"], sqlite_where=is_open, postgresql_where=is_open
    )
    op.create_table(
        "telemetry_chunks",
        sa.Column("id", Id, primary_key=True, autoincrement=True),
        sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("host", Name, nullable=False),
        sa.Column("metric", Name, nullable=False),
        sa.Column("step_s", sa.Integer, nullable=False),
        sa.Column("start_s", sa.BigInteger, nullable=False),
        sa.Column("end_s", sa.BigInteger, nullable=False),
        sa.Column("series", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    key = ["attempt_id", "metric", "step_s", "start_s"]
    op.create_index("ix_telemetry_chunks_attempt_id", "telemetry_chunks", key)
    op.create_index("ix_telemetry_chunks_age", "telemetry_chunks", ["step_s", "end_s"])


def downgrade() -> None:
    op.drop_table("telemetry_chunks")
    op.drop_table("telemetry_hosts")
