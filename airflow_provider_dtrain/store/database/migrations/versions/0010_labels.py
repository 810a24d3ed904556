"""Names, descriptions and tags that users give to experiments and trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
#: The oldest revision whose code works with this schema: it only adds tables.
usable_from = "0003"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "labels",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("object_id", _ID, autoincrement=False, nullable=False),
        sa.Column("display_name", sa.String(250)),
        sa.Column("description", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("kind", "object_id", name="pk_labels"),
    )
    op.create_table(
        "tags",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("object_id", _ID, autoincrement=False, nullable=False),
        sa.Column("tag", sa.String(63), nullable=False),
        sa.PrimaryKeyConstraint("kind", "object_id", "tag", name="pk_tags"),
    )
    op.create_index("ix_tags_tag", "tags", ["kind", "tag", "object_id"])


def downgrade() -> None:
    op.drop_table("tags")
    op.drop_table("labels")
