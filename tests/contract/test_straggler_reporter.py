"""Slow ranks in the task log and in the store, from the measurements that a follower collects."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.series.step_times import SlowRule
from airflow_provider_dtrain.engine.attempt.stragglers import StragglerReporter, places_of
from airflow_provider_dtrain.errors import StaleWatchError, StoreUnavailableError
from testbed.stores import host
from tests.support.straggler_gangs import Gang


class Site:
    """A running trial whose ranks have a host each, and the reporters of its followers."""

    def __init__(self, store, ticket, watch, ranks: int) -> None:
        self.gang = Gang(ranks)
        self.ticket = ticket
        self.sentences: list[str] = []
        plans = {
            place.host: {"ranks": [{"rank": rank, "device": place.device}]} for rank, place in self.gang.places.items()
        }
        self.view = dataclasses.replace(store.attempts.get(ticket.attempt_id), plan={"plans": plans})
        self.rt: Any = SimpleNamespace(
            store=store,
            watch=watch,
            log=logging.getLogger("straggling"),
            on_straggler=self.sentences.append,
            db=self._db,
        )
        self.reporter = self.new_reporter()

    async def _db(self, method, *args):
        return method(*args)

    def new_reporter(self) -> StragglerReporter:
        return StragglerReporter(self.rt, self.view, SlowRule())

    async def run(self, seconds: int, forward) -> None:
        gang = self.gang
        for start in range(gang.now, gang.now + seconds, 10):
            await self.reporter.take({
                place.host: gang.measured(rank, start, forward, {"cpu_steal": 30.0 * (rank == 1)})
                for rank, place in gang.places.items()
            })  # fmt: skip
        gang.now += seconds


@pytest.fixture
def site(store, submit, start) -> Site:
    store.hosts.add(host("a", 8))
    ticket = submit("t", slots=2)
    return Site(store, ticket, start(ticket), 4)


def slow(rank: int, second: int) -> float:
    return 0.2 if rank == 1 else 0.1


def usual(rank: int, second: int) -> float:
    return 0.1


def test_places_are_those_of_the_plan(site: Site) -> None:
    assert places_of(site.view) == site.gang.places


async def test_a_slow_rank_is_logged_once_with_its_cause_and_once_at_its_end(site, store, caplog) -> None:
    caplog.set_level(logging.INFO, "straggling")
    await site.run(300, slow)
    (line,) = caplog.messages
    assert line.startswith("Rank 1 on h1 takes 1.9 times as long as the other ranks since 22:13:20 UTC (it costs the")
    assert "the hypervisor gives 30 % of the CPU time of its host to other machines" in line
    assert site.sentences == [line]
    (found,) = store.stragglers.of_trial(site.ticket.trial_id)
    assert (found.rank, found.cause, found.until) == (1, "cpu_steal", None)
    await site.run(300, usual)
    assert caplog.messages[1:] == ["Rank 1 on h1 is as fast as the other ranks again since 22:18:20 UTC"]
    (found,) = store.stragglers.of_trial(site.ticket.trial_id)
    assert found.until is not None


async def test_the_next_follower_logs_the_end_and_does_not_name_the_rank_again(site, store, caplog) -> None:
    caplog.set_level(logging.INFO, "straggling")
    await site.run(120, slow)
    site.reporter = site.new_reporter()
    await site.run(120, slow)
    assert len(caplog.messages) == 1
    await site.run(200, usual)
    assert len(caplog.messages) == 2
    assert len(store.stragglers.of_trial(site.ticket.trial_id)) == 1


async def test_a_follower_that_was_replaced_reports_nothing(site, store, caplog) -> None:
    store.attempts.watch(site.ticket.attempt_id, watcher="another")
    with pytest.raises(StaleWatchError):
        await site.run(120, slow)
    assert caplog.messages == []
    assert store.stragglers.of_trial(site.ticket.trial_id) == []


async def test_a_slow_rank_that_could_not_be_stored_is_named_later(site, store, caplog) -> None:
    stored = site.rt.db

    async def fail(*_):
        raise StoreUnavailableError("away")

    site.rt.db = fail
    with pytest.raises(StoreUnavailableError):
        await site.run(120, slow)
    assert caplog.messages == []
    site.rt.db = stored
    await site.run(120, slow)
    assert len(caplog.messages) == len(store.stragglers.of_trial(site.ticket.trial_id)) == 1


async def test_many_slow_ranks_of_one_host_are_few_lines(store, submit, start, caplog) -> None:
    store.hosts.add(host("a", 8))
    ticket = submit("t", slots=2)
    site = Site(store, ticket, start(ticket), 20)
    places = {
        rank: dataclasses.replace(place, host="big" if rank < 8 else place.host)
        for rank, place in site.gang.places.items()
    }
    site.gang.places = places
    plans: dict[str, Any] = {}
    for rank, place in places.items():
        plans.setdefault(place.host, {"ranks": []})["ranks"].append({"rank": rank, "device": place.device})
    site.view = dataclasses.replace(site.view, plan={"plans": plans})
    site.reporter = site.new_reporter()
    for start_s in range(0, 120, 10):
        series: dict[str, Any] = {}
        for rank, place in places.items():
            series.setdefault(place.host, {}).update(
                site.gang.measured(rank, start_s, lambda one, _: 0.2 if one < 8 else 0.1, {})
            )
        await site.reporter.take(series)
    assert len(caplog.messages) == 4
    assert caplog.messages[3] == "5 further ranks on big are slow for this reason"
    assert len(store.stragglers.of_trial(ticket.trial_id)) == 8
