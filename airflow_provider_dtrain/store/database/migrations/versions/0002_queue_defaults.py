"""New defaults of the queue, for the pools that have all of the former ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_POOLS = sa.table(
    "pools", *(sa.column(name) for name in ("max_wait_s", "protected_share", "fresh_s", "young_s", "min_run_s"))
)
_OLD = {
    "max_wait_s": 122_400.0,
    "protected_share": 0.65,
    "fresh_s": 14_400.0,
    "young_s": 115_200.0,
    "min_run_s": 1800.0,
}
_NEW = {"max_wait_s": 100_800.0, "protected_share": 0.49, "fresh_s": 18_000.0, "young_s": 61_200.0, "min_run_s": 1200.0}


def upgrade() -> None:
    _replace(_OLD, _NEW)


def downgrade() -> None:
    _replace(_NEW, _OLD)


def _replace(old: dict[str, float], new: dict[str, float]) -> None:
    is_untouched = sa.and_(*(_POOLS.c[name] == value for name, value in old.items()))
    op.execute(_POOLS.update().where(is_untouched).values(**new))
    with op.batch_alter_table("pools") as table:
        for name, value in new.items():
            table.alter_column(name, existing_type=sa.Float, existing_nullable=False, server_default=str(value))
