"""Timelines in tests: their entries by kind, waits with their reasons, and gangs that wait and end."""

from __future__ import annotations

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind
from airflow_provider_dtrain.core.scheduling.estimated_start import without_position
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from tests.support.store_world import Clock


def kinds(entries: list[TimelineEntry]) -> list[str]:
    return [str(entry.kind) for entry in entries]


def only(entries: list[TimelineEntry], kind: TimelineKind) -> TimelineEntry:
    [found] = [entry for entry in entries if entry.kind is kind]
    return found


def reasons(store: Store, ticket: Ticket) -> list[tuple[str, float | None]]:
    """Return the reason of each wait, without its position, and its length in seconds."""
    waits = [entry for entry in store.timeline.of_trial(ticket.trial_id) if entry.kind is TimelineKind.WAITED]
    return [
        (
            without_position(str(entry.detail["reason"])),
            None if entry.until is None else (entry.until - entry.at).total_seconds(),
        )
        for entry in waits
    ]


def wait(store: Store, clock: Clock, seconds: float, *tickets: Ticket) -> None:
    """Let tickets wait and renew their requests."""
    clock.advance(seconds)
    for ticket in tickets:
        store.queue.renew(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="test"))
    store.queue.schedule("gpus")


def end(store: Store, ticket: Ticket, watch: int) -> None:
    store.attempts.end(ticket.attempt_id, watch, state="completed")
    for name in store.attempts.get(ticket.attempt_id).held_hosts:
        store.queue.release(ticket.attempt_id, watch, name, proof="clear")
