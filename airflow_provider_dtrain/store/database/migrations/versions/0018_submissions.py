"""Submissions of users of the API, and the users who sent code."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0018"
down_revision = "0017"
#: The oldest revision whose code works with this schema: older code does not know these tables.
usable_from = "0003"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "submissions",
        sa.Column("dag_id", sa.String(250), primary_key=True),
        sa.Column("run_id", sa.String(250), primary_key=True),
        sa.Column("config_id", _ID, sa.ForeignKey("configs.config_id"), nullable=False),
        sa.Column("payload", sa.String(64)),
        sa.Column("user_id", sa.Text),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "payload_senders",
        sa.Column("digest", sa.String(64), sa.ForeignKey("payloads.digest", ondelete="CASCADE"), primary_key=True),
        sa.Column("user_id", sa.String(250), primary_key=True),
    )


def downgrade() -> None:
    op.drop_table("payload_senders")
    op.drop_table("submissions")
