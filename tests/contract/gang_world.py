"""Helpers for held gangs on one host of two slots: request, use, and end of the users."""

from __future__ import annotations

from airflow_provider_dtrain.store.records.gangs import GangSubmission, GangView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from airflow_provider_dtrain.store.store import Store

HOLD_S = 900.0
BAD = {"error": "RankFailedError", "kind": "user", "message": "it failed"}


def ask(store: Store, *, slots: int = 2, max_tries: int = 0, task: str = "gang", **fields: object) -> GangView:
    key = TrialKey(dag_id="d", run_id="r", task_id=task, max_tries=max_tries)
    return store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=slots, **{"hold_for_s": HOLD_S, **fields}))


def hold(store: Store, **fields: object) -> GangView:
    """Request a gang and take it up."""
    asked = ask(store, **fields)
    watch = store.gangs.watch(asked.allocation_id, watcher="sensor")
    store.queue.schedule("gpus")
    view = store.gangs.take_up(asked.allocation_id, watch)
    assert view is not None
    return view


def begin(store: Store, ticket: Ticket) -> int:
    """Let an attempt use its gang and run, and return its watch."""
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    assert store.gangs.use(ticket.attempt_id, watch)
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"gpu-01": {"ranks": [{"rank": 0}, {"rank": 1}]}}})
    store.attempts.set_running(ticket.attempt_id, watch)
    return watch


def end(store: Store, ticket: Ticket, watch: int, *, clear: bool = True, state: str = "completed") -> None:
    if clear:
        store.queue.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    store.attempts.end(ticket.attempt_id, watch, state=state, failure=None if state == "completed" else BAD)


def held(store: Store) -> list[int]:
    return [slot.index for slot in store.hosts.slots() if slot.allocation_id is not None]
