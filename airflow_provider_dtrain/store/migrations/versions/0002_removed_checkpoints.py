"""When a checkpoint was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.engine import UtcDateTime

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("removed_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("checkpoints") as table:
        table.drop_column("removed_at")
