"""The schema of the first release."""

from __future__ import annotations

from alembic import op

# Their tables are part of the metadata.
from airflow_provider_dtrain.store.database import comment_table, log_tables, run_tables  # noqa: F401
from airflow_provider_dtrain.store.database.tables import metadata

#: Its second part is a digest of the tables. It changes with them, so a store with other tables is refused.
revision = "0001_4158d04a"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)
