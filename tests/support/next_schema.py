"""A migration of a version to come."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_dtrain.store.database.schema import HEAD

NEXT_HEAD = f"{int(HEAD) + 1:04d}"
#: A migration that rebuilds on SQLite a table to which slots refer. ``{0!r}`` is the revision before it, ``{1!r}`` its
#: own.
NEXT = """
import sqlalchemy as sa
from alembic import op
revision = {1!r}
down_revision = {0!r}
def upgrade():
    with op.batch_alter_table("hosts", recreate="auto") as table:
        table.add_column(sa.Column("colour", sa.Text, nullable=False, server_default="red"))
        table.alter_column("address", existing_type=sa.Text, existing_nullable=True, server_default="")
"""


def add_migration(migrations: Path) -> None:
    """Write the migration after the newest one into a folder of migrations."""
    (migrations / "versions" / f"{NEXT_HEAD}_next.py").write_text(NEXT.format(HEAD, NEXT_HEAD))
