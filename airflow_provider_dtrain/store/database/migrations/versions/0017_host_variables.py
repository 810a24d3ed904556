"""Variables of a host, which its ranks get."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
#: The oldest revision whose code works with this schema: it only adds a column.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("hosts", sa.Column("variables", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("hosts") as table:
        table.drop_column("variables")
