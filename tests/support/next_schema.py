"""A migration of a version to come."""

from __future__ import annotations

from pathlib import Path

#: A migration that rebuilds on SQLite a table to which slots refer. ``{0!r}`` is the revision before it.
NEXT = """
import sqlalchemy as sa
from alembic import op
revision = "0002"
down_revision = {0!r}
def upgrade():
    with op.batch_alter_table("hosts", recreate="auto") as table:
        table.add_column(sa.Column("colour", sa.Text, nullable=False, server_default="red"))
        table.alter_column("address", existing_type=sa.Text, existing_nullable=True, server_default="")
"""


def add_migration(migrations: Path, head: str) -> None:
    """Write the migration after ``head`` into a folder of migrations."""
    (migrations / "versions" / "0002_next.py").write_text(NEXT.format(head))
