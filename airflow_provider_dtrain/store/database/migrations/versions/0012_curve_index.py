"""Index over the reports of an attempt, from which pages read curves."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
#: The oldest revision whose code works with this schema: it only adds an index.
usable_from = "0003"


def upgrade() -> None:
    op.create_index("ix_metrics_attempt_id", "metrics", ["attempt_id", "metric_group", "step"])


def downgrade() -> None:
    op.drop_index("ix_metrics_attempt_id", table_name="metrics")
