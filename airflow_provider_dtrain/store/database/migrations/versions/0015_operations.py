"""Work on hosts that users request through the API, and its content."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_dtrain.store.database.connections import UtcDateTime

revision = "0015"
down_revision = "0014"
#: The oldest revision whose code works with this schema: older code does not know these tables.
usable_from = "0003"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = UtcDateTime()


def upgrade() -> None:
    op.create_table(
        "operations",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("trial_id", _ID, sa.ForeignKey("trials.id")),
        sa.Column("arguments", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("through", sa.String(16), nullable=False),
        sa.Column("dag_run", sa.Text),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requested_at", _TIME, nullable=False),
        sa.Column("alive_at", _TIME),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_at", _TIME, nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True)),
        sa.Column("error", sa.Text),
    )
    op.create_index("ix_operations_state", "operations", ["state", "trial_id"])
    op.create_table(
        "operation_pieces",
        sa.Column("operation_id", _ID, sa.ForeignKey("operations.id"), primary_key=True, autoincrement=False),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("operation_pieces")
    op.drop_index("ix_operations_state", table_name="operations")
    op.drop_table("operations")
