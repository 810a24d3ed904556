"""Marks of notifications: one process claims an event, and another one only if the first has died."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_dtrain.core.lifecycle.timing import NOTIFYING_FOR
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.search_world import Search
from tests.support.store_world import Clock


@pytest.mark.each_change
def test_an_event_is_claimed_once_by_many(store: Store, submit: Callable[..., Ticket]) -> None:
    store.hosts.add(host("a", 1))
    trial_id = submit().trial_id
    with ThreadPoolExecutor(8) as threads:
        marks = list(threads.map(lambda _: store.notifications.claim("best", trial_id=trial_id), range(16)))
    assert len([mark for mark in marks if mark is not None]) == 1
    assert store.notifications.claim("failed", trial_id=trial_id) is not None
    assert store.notifications.claim("best", trial_id=submit().trial_id) is not None


def test_the_claim_of_a_process_that_died_expires_and_one_that_is_done_does_not(
    store: Store, clock: Clock, submit: Callable[..., Ticket]
) -> None:
    store.hosts.add(host("a", 1))
    trial_id = submit().trial_id
    mark = store.notifications.claim("failed", trial_id=trial_id)
    clock.advance(NOTIFYING_FOR.total_seconds() - 1)
    assert store.notifications.claim("failed", trial_id=trial_id) is None
    clock.advance(1)
    assert store.notifications.claim("failed", trial_id=trial_id) == mark
    assert store.notifications.claim("failed", trial_id=trial_id) is None
    assert mark is not None
    store.notifications.done(mark, "SmtpNotifier: refused")
    clock.advance(10 * NOTIFYING_FOR.total_seconds())
    assert store.notifications.claim("failed", trial_id=trial_id) is None
    assert store.notifications.sent(trial_id) == {"failed": "SmtpNotifier: refused"}


def test_searches_have_marks_of_their_own(store: Store) -> None:
    store.hosts.add(host("a", 1))
    search = Search(store).plan()
    assert store.notifications.claim("finished", search_id=search.search_id) is not None
    assert store.notifications.claim("finished", search_id=search.search_id) is None
