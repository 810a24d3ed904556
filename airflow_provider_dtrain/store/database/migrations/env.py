"""Alembic environment: runs the revisions on the connection that ``store.schema`` opened."""

from __future__ import annotations

from typing import Any

from alembic import context

from airflow_provider_dtrain.store.database.schema import VERSION_TABLE, note_usable
from airflow_provider_dtrain.store.database.tables import metadata


def after_step(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:
    """Record in the store with which code the schema works after a step."""
    found = (step.up_revision,) if step.is_upgrade else step.down_revisions
    for script in found:
        note_usable(ctx.connection, script.revision, script.module.usable_from)


connection = context.config.attributes["connection"]
# The caller holds the transaction, and DDL is part of it on both databases.
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    on_version_apply=after_step,
)
context.run_migrations()
