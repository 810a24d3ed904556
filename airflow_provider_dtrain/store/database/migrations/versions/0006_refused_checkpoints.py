"""Reason why a reported checkpoint is not used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
#: The oldest revision whose code works with this schema: to that code, refused checkpoints look removed.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("refused", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("checkpoints") as table:
        table.drop_column("refused")
