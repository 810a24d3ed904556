"""Flag of attempts whose log is complete in the task log, or has marks there for its missing parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
#: The oldest revision whose code works with this schema: older code opens the store when it knows that one.
usable_from = "0003"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("log_closed", sa.Boolean, nullable=False, server_default=sa.false()))
    # Earlier releases set no such flag, so nothing can be added to the logs of ended attempts.
    op.execute("UPDATE attempts SET log_closed = true WHERE ended_at IS NOT NULL")


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_column("log_closed")
