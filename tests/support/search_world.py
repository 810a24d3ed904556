"""A search in a store: its plan, its trials and their reports."""

from __future__ import annotations

from itertools import count
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import rung_entries, trials
from airflow_provider_dtrain.store.records.searches import RungEntry, SearchSubmission, SearchView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store

RUNGS = {0: (1, 4, 16)}


class Search:
    """One experiment of a DAG run, with the followers of its trials.

    :param dag: its DAG
    :param pool: has slots for all trials
    """

    def __init__(self, store: Store, *, name: str = "e", dag: str = "d", run: str = "r", pool: str = "gpus") -> None:
        self.store, self.name, self.dag, self.run, self.pool = store, name, dag, run, pool
        self.config = store.configs.put({"entrypoint": "python train.py"}, origins={}).config_id
        self.view: SearchView | None = None
        self.watches: dict[int, int] = {}
        self.offsets: dict[tuple[int, str], int] = {}
        self.steps = count(1)

    def plan(self, *, max_tries: int = 0, task: str = "plan", **fields: Any) -> SearchView:
        """Return the search of a plan task."""
        key = TrialKey(dag_id=self.dag, run_id=self.run, task_id=task, max_tries=max_tries)
        values = {"method": "async_halving", "metric": "loss", "rungs": RUNGS, "max_trials": 4, **fields}
        submission = SearchSubmission(key=key, experiment_name=self.name, config_id=self.config, **values)
        self.view = self.store.searches.create(submission)
        return self.view

    def submit(self, number: int, *, max_tries: int = 0, map_index: int | None = None, **fields: Any) -> Ticket:
        """Submit a trial of the search as its mapped task does.

        :param map_index: of the task; None: the number of the trial
        """
        view = self.view or self.plan()
        index = number if map_index is None else map_index
        key = TrialKey(dag_id=self.dag, run_id=self.run, task_id="trial", map_index=index, max_tries=max_tries)
        values = {"slots": 0, "number": number, "hparams": {"lr": number}, "search_id": view.search_id, **fields}
        submission = TrialSubmission(
            key=key, experiment_name=self.name, config_id=self.config, pool=self.pool, **values
        )
        return self.store.trials.submit(submission)

    def start(self, number: int, **fields: Any) -> Ticket:
        """Submit a trial and bring it to ``running``."""
        ticket = self.submit(number, **fields)
        self.follow(ticket.attempt_id)
        return ticket

    def follow(self, attempt_id: int) -> None:
        """Take an attempt over, and bring it to ``running`` if it waits."""
        store = self.store
        self.watches[attempt_id] = watch = store.attempts.watch(attempt_id, watcher="test")
        if store.attempts.get(attempt_id).state == "waiting":
            store.queue.schedule(self.pool)
            assert store.queue.take_up(attempt_id, watch)
        if store.attempts.get(attempt_id).state == "starting":
            plans = {name: {"ranks": [{"rank": 0}]} for name in store.attempts.get(attempt_id).placement}
            store.attempts.set_plan(attempt_id, watch, {"plans": plans})
            store.attempts.set_running(attempt_id, watch)

    def draw_again(self, ticket: Ticket) -> Ticket:
        """Reject a trial's hyperparameters, draw new ones, and return the ticket of its next attempt."""
        failure = {"error": "InvalidHPError", "kind": "user", "message": "lr is too low"}
        draw = self.store.trials.get(ticket.trial_id).draw + 1
        watch = self.watches[ticket.attempt_id]
        again = self.store.attempts.next(ticket.attempt_id, watch, failure=failure, counted=False)
        self.follow(again.attempt_id)
        self.store.searches.set_hparams(again.attempt_id, self.watches[again.attempt_id], {"lr": draw}, draw)
        return again

    def ask(self, ticket: Ticket, rung: int, metric: Any, *, units: int | None = None, **more: Any) -> str | None:
        """Commit a rung event of rank 0 and return the trial's latest decision."""
        event = {"kind": "rung", "rung": rung, "metric": metric, "step": 1, **more}
        if units is not None:
            event["units"] = units
        self.commit(ticket, event)
        told = self.told(ticket)
        return told[-1] if told else None

    def commit(self, ticket: Ticket, *events: dict[str, Any], stream: str = "rank0.events") -> None:
        """Commit events of a run."""
        store, attempt = self.store, ticket.attempt_id
        view = store.attempts.get(attempt)
        name = next(iter(view.placement))
        old = store.events.offsets(attempt).get((name, stream), 0)
        batch = [{"seq": next(self.steps), "at": 1.0, **event} for event in events]
        store.events.commit(attempt, self.watches[attempt], name, stream, old, old + 10 * len(batch), batch)

    def validate(self, ticket: Ticket, **metrics: Any) -> None:
        """Commit a validation of rank 0."""
        self.commit(ticket, {"kind": "validation", "step": next(self.steps), "metrics": metrics})

    def told(self, ticket: Ticket) -> list[str | None]:
        """Return a trial's decisions, lowest rung first."""
        return [entry.decision for entry in self.store.searches.decisions(ticket.trial_id)]

    def entries(self) -> list[RungEntry]:
        """Return all entries of the search."""
        assert self.view is not None
        return self.store.searches.rung_entries(self.view.search_id)

    def end(self, ticket: Ticket, state: str = "completed", **fields: Any) -> None:
        """End a trial. Its hosts confirm that no process is left."""
        store, attempt = self.store, ticket.attempt_id
        store.attempts.end(attempt, self.watches[attempt], state=state, **fields)
        for name in store.attempts.get(attempt).held_hosts:
            store.queue.release(attempt, self.watches[attempt], name, proof="clear")

    def order_of_entries(self) -> list[tuple[int, str | None]]:
        """Return number and decision of each entry, in the order of their commits."""
        assert self.view is not None
        with self.store.db.engine.connect() as connection:
            query = sa.select(trials.c.number, rung_entries.c.decision).join(
                trials, trials.c.id == rung_entries.c.trial_id
            )
            return [(number, told) for number, told in connection.execute(query.order_by(rung_entries.c.id))]
