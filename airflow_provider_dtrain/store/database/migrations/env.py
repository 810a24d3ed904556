"""Alembic environment: runs the revisions on the connection that ``store.schema`` opened."""

from __future__ import annotations

from alembic import context

from airflow_provider_dtrain.store.database.schema import VERSION_TABLE
from airflow_provider_dtrain.store.database.tables import metadata

# The caller holds the transaction, and DDL is part of it on both databases.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
