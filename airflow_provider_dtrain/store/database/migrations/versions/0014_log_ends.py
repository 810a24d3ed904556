"""Offset of the end of a rank's stored log, so that readers resume where they were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("ranks", sa.Column("log_end", sa.BigInteger))


def downgrade() -> None:
    with op.batch_alter_table("ranks") as table:
        table.drop_column("log_end")
