"""Host checks in the store: slots that a check holds, its results, and the sentences about slow hosts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_dtrain.core.host_rates import PAST_MOST, HostFinding, HostRate, RateMetric
from airflow_provider_dtrain.core.lifecycle.timing import CHECK_HOLD_S
from airflow_provider_dtrain.errors import GangEndedError, NotFoundError, NotNowError
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.store_world import Clock

Submit = Callable[..., Ticket]


@pytest.fixture
def pair(store: Store) -> Store:
    """Two hosts with two slots each."""
    for name in ("a", "b"):
        store.hosts.add(host(name, 2))
    return store


def memory(name: str, value: float = 1e10, **more: object) -> HostRate:
    return HostRate(host=name, metric=RateMetric.MEMORY, kind="AMD", value=value, **more)  # type: ignore[arg-type]


def link(name: str, peer: str) -> HostRate:
    return HostRate(host=name, metric=RateMetric.LINK, kind="1000", value=1e6, peer=peer)


def finding(rate: HostRate, *hosts: str) -> HostFinding:
    return HostFinding(sentence=f"{rate.place} is slow", hosts=hosts, rates=(rate,), ratio=0.1)


def test_a_check_holds_all_usable_slots_of_its_hosts_or_none(pair: Store, submit: Submit) -> None:
    pair.hosts.set_slot_enabled("a", 1, False)
    held = pair.host_rates.hold(["a", "b"], by="me")
    assert [(one.host, sorted(one.devices)) for one in held] == [("a", [0]), ("b", [0, 1])]
    ticket = submit()
    pair.queue.schedule("gpus")
    assert pair.attempts.get(ticket.attempt_id).token is None
    with pytest.raises(NotNowError, match="Slots are in use on a"):
        pair.host_rates.hold(["a"], by="other")
    with pytest.raises(NotFoundError, match="There is no host 'c'"):
        pair.host_rates.hold(["c"], by="other")
    assert pair.host_rates.release([one.allocation_id for one in held]) == ["gpus"]
    pair.queue.schedule("gpus")
    assert pair.attempts.get(ticket.attempt_id).token is not None
    pair.host_rates.release([one.allocation_id for one in held])
    with pytest.raises(NotNowError, match=f"trial {ticket.trial_id} holds slots"):
        pair.host_rates.hold(["a", "b"], by="me")


def test_the_slots_of_a_check_that_was_killed_become_free(pair: Store, clock: Clock, submit: Submit) -> None:
    (held,) = pair.host_rates.hold(["a"], by="me")
    clock.advance(CHECK_HOLD_S - 1)
    pair.host_rates.renew([held.allocation_id])
    clock.advance(CHECK_HOLD_S - 1)
    pair.host_rates.renew([held.allocation_id])
    clock.advance(CHECK_HOLD_S + 1)
    ticket = submit(slots=4)
    pair.queue.schedule("gpus")
    pair.queue.schedule("gpus")
    assert pair.attempts.get(ticket.attempt_id).token is not None
    with pytest.raises(GangEndedError, match="released meanwhile"):
        pair.host_rates.renew([held.allocation_id])


def test_a_sentence_stays_until_a_check_finds_its_subject_well(pair: Store) -> None:
    rates = pair.host_rates
    slow, well, way = memory("a", 1e9, slot=0), memory("b"), link("a", "b")
    rates.record([slow, well, way], [finding(slow, "a"), finding(way, "a", "b")])
    assert pair.hosts.get("a").findings == "a slot 0 is slow\na to b is slow"
    assert pair.hosts.get("b").findings == "a to b is slow"
    rates.record([memory("a", slot=1)], [])
    assert pair.hosts.get("a").findings == "a slot 0 is slow\na to b is slow"
    # A link accuses none of its hosts alone, and a slot only the gangs that have it.
    assert rates.faults({"a": [0, 1], "b": [0, 1]}) == {"a": ["a slot 0 is slow"]}
    assert rates.faults({"a": [1], "b": [0]}) == {}
    found = {rate.place: sentence for rate, sentence in rates.latest("b")}
    assert found == {"b": None, "a to b": "a to b is slow"}
    rates.record([memory("a", slot=0), way], [])
    assert (pair.hosts.get("a").findings, pair.hosts.get("b").findings) == ("", "")


def test_results_of_a_removed_host_are_left_out(pair: Store) -> None:
    pair.hosts.remove("b")
    pair.host_rates.record([memory("b", 1e9)], [finding(memory("b", 1e9), "b")])
    assert pair.host_rates.peers([memory("a")]) == []


def test_references_are_the_latest_results_of_peers_and_the_past_that_was_not_named(pair: Store) -> None:
    rates = pair.host_rates
    for value in range(1, PAST_MOST + 4):
        rates.record([memory("a", value)], [])
    slow = memory("a", 0.5)
    rates.record([slow], [finding(slow, "a")])
    past = rates.past(["a"])
    assert [rate.value for rate in past] == list(range(PAST_MOST + 3, 3, -1))
    assert [rate.value for rate in rates.peers([memory("b")])] == [0.5]
    assert rates.peers([HostRate(host="b", metric=RateMetric.MEMORY, kind="Intel", value=1.0)]) == []
    assert rates.peers([]) == []


def test_devices_are_fresh_for_a_time(pair: Store, clock: Clock) -> None:
    pair.host_rates.record([memory("a"), memory("a", slot=1), link("a", "b")], [])
    since = pair.db.now() - timedelta(seconds=60)
    assert pair.host_rates.fresh(["a", "b"], since) == {("a", None), ("a", 1)}
    clock.advance(61)
    assert pair.host_rates.fresh(["a", "b"], pair.db.now() - timedelta(seconds=60)) == set()


@pytest.mark.parametrize(("slots", "can"), [(2, True), (4, False)])
def test_a_trial_avoids_a_host_only_if_the_other_ones_can_serve_it(
    pair: Store, submit: Submit, slots: int, can: bool
) -> None:
    ticket = submit(slots=slots)
    pair.queue.schedule("gpus")
    assert pair.host_rates.can_avoid(ticket.attempt_id, ["a"]) == can
