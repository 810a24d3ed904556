"""Indexes from which pages read the counts and the best trial of an experiment."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
#: The oldest revision whose code works with this schema: it only adds indexes.
usable_from = "0003"


def upgrade() -> None:
    summary = ["experiment_id", "state", "cleared_at", "search_id", "best_metric", "ended_at", "is_drawn", "draw"]
    op.create_index("ix_trials_summary", "trials", summary)
    op.create_index("ix_trials_best", "trials", ["search_id", "best_metric", "number"])


def downgrade() -> None:
    op.drop_index("ix_trials_best", table_name="trials")
    op.drop_index("ix_trials_summary", table_name="trials")
