"""The best metric that a search has announced."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("searches", sa.Column("announced", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("searches") as table:
        table.drop_column("announced")
