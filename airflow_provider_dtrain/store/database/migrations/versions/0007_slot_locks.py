"""Folder of the locks of all accounts on a host, and the reason why a slot is not ready."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("hosts", sa.Column("lock_dir", sa.Text(), nullable=True))
    op.add_column("slots", sa.Column("note", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("slots") as table:
        table.drop_column("note")
    with op.batch_alter_table("hosts") as table:
        table.drop_column("lock_dir")
