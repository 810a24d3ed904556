"""Time up to which the telemetry of a host is in chunks with intervals of ten minutes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("telemetry_hosts", sa.Column("rolled_600_s", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("telemetry_hosts") as table:
        table.drop_column("rolled_600_s")
