"""Places of experiments in lists: owner, project, archive."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.control import Change
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT, check_project
from airflow_provider_dtrain.errors import ConflictError
from airflow_provider_dtrain.store.database.tables import experiments, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.records.pages import Dags, ExperimentQuery

_IS_KEPT = experiments.c.delete_requested_at.is_(None)
#: Places that change without a change of the experiment, for the version of lists.
PLACED: sa.Select[Any] = (
    sa.select(experiments.c.id, experiments.c.project, experiments.c.archived, sa.not_(_IS_KEPT))
    .where(sa.or_(experiments.c.archived, experiments.c.project != DEFAULT_PROJECT, sa.not_(_IS_KEPT)))
    .order_by(experiments.c.id)
)


#: True for a trial of an experiment that is being deleted, which no list shows.
IS_DELETED_TRIAL = trials.c.experiment_id.in_(sa.select(experiments.c.id).where(sa.not_(_IS_KEPT)))


class Places:
    """Owners and projects of experiments."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def in_use(self, conn: Connection, dags: Dags = None) -> tuple[list[str], list[str]]:
        """Return the owners and the projects of experiments, sorted.

        :param dags: only of experiments of these DAGs
        """
        of_dags = [] if dags is None else [experiments.c.dag_id.in_(sorted(dags))]
        owners, projects = (
            sorted(conn.scalars(sa.select(experiments.c[name]).where(_IS_KEPT, *of_dags).distinct()))
            for name in ("owner", "project")
        )
        return [name for name in owners if name], projects

    @reads
    def is_owner(self, conn: Connection, owner: str) -> bool:
        """Return whether an experiment that is not archived has this owner."""
        own = sa.select(experiments.c.id).where(experiments.c.owner == owner, sa.not_(experiments.c.archived), _IS_KEPT)
        return bool(owner) and conn.scalar(own.limit(1)) is not None


def in_place(query: ExperimentQuery) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a query on owner, project and archive. What is being deleted never matches."""
    where: list[sa.ColumnElement[bool]] = [_IS_KEPT]
    if query.owner is not None:
        where.append(experiments.c.owner == query.owner)
    if query.project is not None:
        where.append(experiments.c.project == query.project)
    if query.archived != "all":
        where.append(experiments.c.archived if query.archived == "only" else sa.not_(experiments.c.archived))
    return where


def set_place(db: Database, conn: Connection, experiment_id: int, change: Change, by: str) -> None:
    """Archive an experiment, return it to the lists, or move it to another project. Its row is locked.

    :raises UserError: the name of the project is not usable
    :raises ConflictError: it is to be archived, and it runs, or it is being deleted
    """
    row = conn.execute(sa.select(experiments).where(experiments.c.id == experiment_id)).one()
    if row.delete_requested_at is not None:
        raise ConflictError(f"Experiment {experiment_id} is being deleted.")
    if change.get("archived") and row.state == "running":
        raise ConflictError(
            f"Experiment {experiment_id} has not ended, so it cannot be archived. Stop or kill it first."
        )
    values: dict[str, str | bool] = {}
    if "project" in change:
        values["project"] = check_project(change["project"])
    if "archived" in change:
        values["archived"] = change["archived"]
    conn.execute(experiments.update().where(experiments.c.id == experiment_id).values(**values))
    if "project" in values:
        db.audit(conn, by, "moved", f"experiment {experiment_id}", f"{row.project!r} -> {values['project']!r}")
    if "archived" in values:
        db.audit(conn, by, "archived" if values["archived"] else "unarchived", f"experiment {experiment_id}")
