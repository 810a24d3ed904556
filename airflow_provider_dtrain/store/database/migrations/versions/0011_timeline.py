"""Timelines of trials, their standing at rungs, and notifications."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0011"
down_revision = "0010"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("allocations", sa.Column("requested_at", UtcDateTime(), nullable=True))
    op.add_column("allocations", sa.Column("reason_since_s", sa.Float(), nullable=True))
    op.add_column("allocations", sa.Column("reason_entries", sa.Integer(), nullable=False, server_default="0"))
    for column in ("place", "entries"):
        op.add_column("rung_entries", sa.Column(column, sa.Integer(), nullable=True))
    op.add_column("rung_entries", sa.Column("cutoff", sa.Float(), nullable=True))
    op.create_table(
        "timeline",
        sa.Column("id", Id, primary_key=True, autoincrement=True),
        sa.Column("trial_id", Id, sa.ForeignKey("trials.id"), nullable=False),
        sa.Column("attempt_id", Id, nullable=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=True),
        sa.Column("host", sa.String(63), nullable=True),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=True),
        sa.Column("merged", sa.Integer(), nullable=False, server_default="0"),
        sa.Index("ix_timeline_trial_id", "trial_id", "id"),
    )
    op.create_table(
        "notifications",
        sa.Column("id", Id, primary_key=True, autoincrement=True),
        sa.Column("trial_id", Id, sa.ForeignKey("trials.id"), nullable=True),
        sa.Column("search_id", Id, sa.ForeignKey("searches.id"), nullable=True),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("claimed_at", UtcDateTime(), nullable=False),
        sa.Column("done_at", UtcDateTime(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.UniqueConstraint("trial_id", "event"),
        sa.UniqueConstraint("search_id", "event"),
    )


def downgrade() -> None:
    op.drop_table("notifications")
    op.drop_table("timeline")
    with op.batch_alter_table("rung_entries") as table:
        for column in ("cutoff", "entries", "place"):
            table.drop_column(column)
    with op.batch_alter_table("allocations") as table:
        for column in ("reason_entries", "reason_since_s", "requested_at"):
            table.drop_column(column)
