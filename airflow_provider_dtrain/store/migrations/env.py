"""Runs the revisions on the connection that ``store.schema`` opened."""

from __future__ import annotations

from alembic import context

from airflow_provider_dtrain.store.schema import VERSION_TABLE
from airflow_provider_dtrain.store.tables import metadata

connection = context.config.attributes["connection"]
# The caller holds the transaction: on both databases DDL is part of it.
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE, render_as_batch=True)
context.run_migrations()
