"""Experiments as a whole: their views, and control requests to all their trials."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.control import ControlRequest
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_LIVE, ExperimentState
from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from airflow_provider_dtrain.store.database.rows import ExperimentRow
from airflow_provider_dtrain.store.database.tables import attempts, experiments, gangs, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.experiment_views import STATE, experiment_views
from airflow_provider_dtrain.store.queue.control_requests import (
    activate_trial,
    bump_pools,
    pause_trial,
    request_end,
)
from airflow_provider_dtrain.store.records.searches import ExperimentView


class Experiments:
    """Experiments and their control requests.

    A request applies to all current trials and to all trials that are submitted until the experiment ends.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def get(self, conn: Connection, experiment_id: int) -> ExperimentView:
        """Return an experiment.

        :raises NotFoundError: there is none with this id
        """
        found = experiment_views(conn, experiments.c.id == experiment_id)
        if not found:
            raise _no_experiment(experiment_id)
        return found[0]

    @writes
    def stop(self, conn: Connection, experiment_id: int, by: str) -> int:
        """Request that all trials of an experiment end with their best results so far, and return their number.

        Running trials write a checkpoint first. Their end is a success.

        :param by: the user
        :raises NotFoundError: there is no such experiment
        """
        return self._request_end(conn, experiment_id, "stop", by)

    @writes
    def kill(self, conn: Connection, experiment_id: int, by: str) -> int:
        """Request that all trials of an experiment are killed, and return their number.

        :param by: the user
        :raises NotFoundError: there is no such experiment
        """
        return self._request_end(conn, experiment_id, "kill", by)

    @writes
    def pause(self, conn: Connection, experiment_id: int, by: str) -> int:
        """Pause the trials of an experiment until it is activated, and return their number.

        Trials that were paused before are not counted. Trials that use a gang that is held for several tasks continue,
        because a pause would free no slot.

        :param by: the user
        :raises NotFoundError: there is no such experiment
        :raises ConflictError: it has ended, or a stop or a kill was requested
        """
        _lock_pools(conn, experiment_id)
        row = _locked_experiment(conn, experiment_id)
        if row.state != "running" or row.control_request in {"stop", "kill"}:
            now = row.state if row.state != "running" else f"being ended by {row.requested_by}"
            raise ConflictError(f"Experiment {experiment_id} is {now}: there is nothing to pause.")
        self._set_request(conn, experiment_id, "pause", by)
        held = sa.select(gangs.c.allocation_id).where(gangs.c.allocation_id == attempts.c.allocation_id).exists()
        uses_gang = sa.select(attempts.c.id).where(
            attempts.c.trial_id == trials.c.id, attempts.c.ended_at.is_(None), held
        )
        where = (trials.c.experiment_id == experiment_id, trials.c.state.in_(TRIAL_LIVE), sa.not_(uses_gang.exists()))
        query = sa.select(trials.c.id).where(*where, trials.c.pause_requested_at.is_(None)).order_by(trials.c.id)
        found = list(conn.scalars(query))
        for trial_id in found:
            pause_trial(self.db, conn, trial_id, by)
        return len(found)

    @writes
    def activate(self, conn: Connection, experiment_id: int, by: str) -> int:
        """Resume the paused trials of an experiment in their places in the queue, and return their number.

        :param by: the user
        :raises NotFoundError: there is no such experiment
        :raises ConflictError: it has ended
        """
        _lock_pools(conn, experiment_id)
        row = _locked_experiment(conn, experiment_id)
        if row.control_request == "pause":
            self._set_request(conn, experiment_id, None, by)
        of = (trials.c.experiment_id == experiment_id, trials.c.pause_requested_at.is_not(None))
        found = list(
            conn.scalars(sa.select(trials.c.id).where(*of, trials.c.state.in_(TRIAL_LIVE)).order_by(trials.c.id))
        )
        if row.state != "running" and not found:
            raise ConflictError(f"Experiment {experiment_id} is {row.state}: there is nothing to activate.")
        return sum(activate_trial(self.db, conn, trial_id, by) for trial_id in found)

    def _request_end(self, conn: Connection, experiment_id: int, request: ControlRequest, by: str) -> int:
        """Request the end of all trials of an experiment, including those that are submitted later."""
        row = _locked_experiment(conn, experiment_id)
        if row.state == "running" and not (row.control_request == "kill" and request == "stop"):
            self._set_request(conn, experiment_id, request, by)
        return request_end(conn, self.db.now(), trials.c.experiment_id == experiment_id, request, by)

    def _set_request(self, conn: Connection, experiment_id: int, request: ControlRequest | None, by: str) -> None:
        values = {"control_request": request, "requested_by": None if request is None else by}
        conn.execute(experiments.update().where(experiments.c.id == experiment_id).values(**values))
        action = "activated" if request is None else f"{request} requested"
        self.db.audit(conn, by, action, f"experiment {experiment_id}")

    @reads
    def list(
        self,
        conn: Connection,
        *,
        limit: int | None = 100,
        state: ExperimentState | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        name: str | None = None,
    ) -> list[ExperimentView]:
        """Return experiments, newest first. Each argument that is not None narrows the list.

        :param limit: most experiments to return; None = all
        """
        given = {"dag_id": dag_id, "run_id": run_id, "name": name}
        where = [experiments.c[column] == value for column, value in given.items() if value is not None]
        where += [] if state is None else [STATE.in_([state])]
        return experiment_views(conn, sa.and_(sa.true(), *where), limit=limit)


def _no_experiment(experiment_id: int) -> NotFoundError:
    return NotFoundError(f"There is no experiment {experiment_id}. See: airflow dtrain experiments list")


def _locked_experiment(conn: Connection, experiment_id: int) -> ExperimentRow:
    query = sa.select(experiments).where(experiments.c.id == experiment_id).with_for_update()
    row = conn.execute(query).one_or_none()
    if row is None:
        raise _no_experiment(experiment_id)
    return row


def _lock_pools(conn: Connection, experiment_id: int) -> None:
    """Lock the pools of an experiment's trials in one order, before any row that belongs to them."""
    bump_pools(conn, trials.c.experiment_id == experiment_id)
