"""Time of a checkpoint's removal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0002"
down_revision = "0001"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0001"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("removed_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("checkpoints") as table:
        table.drop_column("removed_at")
