"""Tables behind the table of runs: latest values of metrics, and saved views."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.tables import AirflowId, Id, Json, metadata

#: Latest value of each metric of a trial, name -> number or the name of NaN or an infinity. Each report changes it, so
#: that a filter over thousands of trials reads one row of each instead of all its reports.
latest_metrics = sa.Table(
    "latest_metrics",
    metadata,
    sa.Column("trial_id", Id, sa.ForeignKey("trials.id"), primary_key=True, autoincrement=False),
    sa.Column("validation", Json, nullable=False),
    # Metrics of the training and the built-in ones.
    sa.Column("training", Json, nullable=False),
)

#: Views of the table of runs that users have saved.
run_views = sa.Table(
    "run_views",
    metadata,
    sa.Column("id", Id, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(100), nullable=False),
    # Airflow's id of the user, and their name.
    sa.Column("owner_id", AirflowId, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("is_shared", sa.Boolean, nullable=False),
    # {"where", "columns", "by", "sort", "charts"}
    sa.Column("definition", Json, nullable=False),
    sa.Column("changed_at", UtcDateTime(), nullable=False),
    sa.UniqueConstraint("owner_id", "name"),
)
