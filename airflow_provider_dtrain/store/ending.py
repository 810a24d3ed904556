"""State changes of attempts, trials and experiments, shared by several nouns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core import lifecycle
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.base import bump, lock_pool
from airflow_provider_dtrain.store.counting import held_s
from airflow_provider_dtrain.store.held import Held
from airflow_provider_dtrain.store.records import AttemptState, EndState
from airflow_provider_dtrain.store.tables import allocations, attempts, experiments, trials

#: How an attempt is marked when its trial ends.
ATTEMPT_END: Mapping[EndState, AttemptState] = {
    "completed": "completed", "stopped": "completed", "errored": "failed", "killed": "failed",
}  # fmt: skip


class Ending(Held):
    """Moves attempts and trials; callers hold the lock of the pool."""

    def _lock_pool_of(self, conn: Connection, attempt_id: int) -> Row[Any]:
        """Lock the pool that an attempt's request waits in; a pool is locked before anything in it."""
        query = sa.select(allocations.c.pool).join(attempts, attempts.c.allocation_id == allocations.c.id)
        pool = conn.scalar(query.where(attempts.c.id == attempt_id))
        if pool is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        return lock_pool(conn, pool)

    def _set_attempt(self, conn: Connection, attempt: Row[Any], state: AttemptState, **values: Any) -> None:
        if attempt.state != state:
            lifecycle.check("attempt", attempt.state, state)
        conn.execute(attempts.update().where(attempts.c.id == attempt.id).values(state=state, **values))

    def _set_trial(self, conn: Connection, trial_id: int, state: str, **values: Any) -> None:
        old = conn.scalar(sa.select(trials.c.state).where(trials.c.id == trial_id).with_for_update())
        if old != state:
            lifecycle.check("trial", str(old), state)
        conn.execute(trials.update().where(trials.c.id == trial_id).values(state=state, **values))

    def _end(
        self,
        conn: Connection,
        attempt: Row[Any],
        state: EndState,
        failure: Mapping[str, Any] | None,
        result: Mapping[str, Any] | None,
    ) -> None:
        """End an attempt with its trial, its request if it still waits, and its experiment if it was the last."""
        now = self._now()
        result = attempt.result if result is None else result
        values = {"failure": failure, "result": result, "ended_at": now}
        self._set_attempt(conn, attempt, mark_of(state, failure, attempt.state), **values)
        self._set_trial(conn, attempt.trial_id, state, **values)
        row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
        if row.trial_id is None:
            self._leave_gang(conn, row, attempt.id)
        else:
            self._expire(conn, row)
        self._end_experiment(conn, attempt.trial_id)

    def _expire(self, conn: Connection, row: Row[Any]) -> None:
        """Take the gang from its attempt: released when nothing was started, else held until the hosts confirm."""
        if row.state in {"waiting", "granted"}:
            self._release_host(conn, row.id, None, "untaken")
            bump(conn, row.pool)
        elif row.state in {"starting", "running", "stopping"}:
            self._set_allocation(conn, row.id, row.state, "expired")

    def _ungrant(self, conn: Connection, row: Row[Any], reason: str) -> Row[Any]:
        """Take a grant back under which no process was started; return the allocation as it is then.

        Whoever takes the grant up does not lock the pool: if that came first, nothing is changed.
        """
        now = self._now()
        values = {"token": None, "granted_at": None, "reason": reason, "eligible_since": now}
        if self._set_allocation(conn, row.id, "granted", "waiting", **values, held_s=held_s(row, now)):
            self._free_rows(conn, [row.id], "untaken")
            bump(conn, row.pool)
        return conn.execute(sa.select(allocations).where(allocations.c.id == row.id)).one()

    def _end_experiment(self, conn: Connection, trial_id: int) -> None:
        of = conn.scalar(sa.select(trials.c.experiment_id).where(trials.c.id == trial_id))
        # Locked, so that of two trials that end at once the second sees the first.
        conn.execute(sa.select(experiments.c.id).where(experiments.c.id == of).with_for_update())
        rows = conn.execute(
            sa.select(trials.c.task_id, trials.c.map_index, trials.c.state)
            .where(trials.c.experiment_id == of)
            .order_by(trials.c.max_tries)
        )
        # A cleared task leaves its older trial behind as history.
        states = {(row.task_id, row.map_index): row.state for row in rows}.values()
        if any(state in {"queued", "running", "paused"} for state in states):
            return
        order = ("completed", "stopped", "killed", "errored")
        state = next((name for name in order if name in states), "completed")
        state = "completed" if state == "stopped" else state
        conn.execute(experiments.update().where(experiments.c.id == of).values(state=state, ended_at=self._now()))


def mark_of(state: EndState, failure: Mapping[str, Any] | None, old: str) -> AttemptState:
    """Return how an attempt is marked that ends its trial so; ``lost`` when a host was at fault."""
    end = ATTEMPT_END[state]
    is_lost = end == "failed" and failure is not None and failure.get("kind") == "infra"
    return "lost" if is_lost and "lost" in lifecycle.allowed("attempt", old) else end
