"""Table of the comments of users."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.tables import AirflowId, Id, metadata

#: Comments of users on experiments and trials. A comment is never changed.
comments = sa.Table(
    "comments",
    metadata,
    sa.Column("id", Id, primary_key=True, autoincrement=True),
    # ``experiment`` or ``trial``
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("object_id", Id, nullable=False),
    sa.Column("at", UtcDateTime(), nullable=False),
    # Airflow's id of the user, which no later user gets, and the name that is shown.
    sa.Column("user_id", AirflowId, nullable=False),
    sa.Column("by", AirflowId, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("ix_comments_object", "kind", "object_id", "id"),
)
