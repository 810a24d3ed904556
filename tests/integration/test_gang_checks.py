"""Checks of hosts between the grant of a gang and its launch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_dtrain.core.host_rates import HostCheckRule, HostFinding, HostRate, RateMetric
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from testbed.netns import NamespaceHosts
from tests.support.checked_hosts import CheckedHosts
from tests.support.engines import Engine, config

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.slow]

SENTENCE = "memory: 1 GB/s, 90% below the 10 GB/s that its peers have"


@pytest.fixture(scope="module")
def fleet(
    namespace_hosts: Callable[..., NamespaceHosts], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CheckedHosts]:
    """Two hosts with two CPU slots each."""
    with pytest.MonkeyPatch.context() as patch:
        fleet = CheckedHosts(namespace_hosts(count=2, slots=2), tmp_path_factory.mktemp("fleet"), patch)
        yield fleet
        fleet.close()


def find_slow(fleet: CheckedHosts, *names: str) -> None:
    """Store a check by which some hosts are slow and the others are well."""
    rates = [
        HostRate(host=name, metric=RateMetric.MEMORY, kind="AMD", value=1e9 if name in names else 1e10)
        for name in fleet.names
    ]
    found = [HostFinding(sentence=SENTENCE, hosts=(one.host,), rates=(one,), ratio=0.1) for one in rates]
    fleet.hook.store.host_rates.record(rates, [one for one in found if one.hosts[0] in names])


def run(fleet: CheckedHosts, rule: HostCheckRule, slots: int, *, every_s: float = 86_400.0) -> tuple[int, list[str]]:
    """Run a trial, and return its id and the hosts of its last attempt."""
    fleet.hook.store.pools.set("gpus", host_check=rule, host_check_every_s=every_s)
    engine = Engine(fleet.hook)
    document = config("facts", slots=slots)
    document["resources"]["pool"] = "gpus"
    ticket = engine.submit(document, run_id=f"{rule}-{slots}-{every_s}")
    outcome = asyncio.run(engine.carry(ticket))
    assert outcome is not None
    assert outcome.state == "completed", outcome
    trial = fleet.hook.store.trials.get(ticket.trial_id)
    return ticket.trial_id, sorted(fleet.hook.store.attempts.get(trial.attempt_id).placement)


def test_a_trial_leaves_a_slow_host_out_and_its_timeline_has_the_sentence(fleet: CheckedHosts) -> None:
    well, slow = fleet.names
    find_slow(fleet, slow)
    trial_id, hosts = run(fleet, HostCheckRule.EXCLUDE, 2)
    assert hosts == [well]
    entries = fleet.hook.store.timeline.of_trial(trial_id)
    [entry] = [entry for entry in entries if entry.kind == TimelineKind.HOST_EXCLUDED]
    assert (entry.host, SENTENCE in entry.text) == (slow, True)
    assert fleet.hook.store.trials.get(trial_id).restarts == 0


def test_a_pool_that_evacuates_drains_the_slow_host(fleet: CheckedHosts) -> None:
    # The queue gives the trial either host first.
    for number, slow in enumerate(fleet.names):
        find_slow(fleet, slow)
        try:
            assert slow not in run(fleet, HostCheckRule.EVACUATE, 2, every_s=86_400.0 + number)[1]
            record = fleet.hook.store.hosts.get(slow)
            if record.state == HostState.DRAINED:
                assert record.state_reason == SENTENCE
                return
        finally:
            fleet.hook.store.hosts.set_state(slow, HostState.READY, by="ann")
    pytest.fail("no trial got the slow host first")


def test_a_trial_that_needs_a_slow_host_starts_there_with_a_warning(
    fleet: CheckedHosts, caplog: pytest.LogCaptureFixture
) -> None:
    find_slow(fleet, fleet.names[0])
    with caplog.at_level(logging.INFO, "engine"):
        assert run(fleet, HostCheckRule.EXCLUDE, 4)[1] == fleet.names
    assert f"Host '{fleet.names[0]}' is slow: {SENTENCE}. The gang starts nevertheless." in caplog.text


def test_a_pool_that_warns_excludes_no_host(fleet: CheckedHosts, caplog: pytest.LogCaptureFixture) -> None:
    find_slow(fleet, *fleet.names)
    with caplog.at_level(logging.INFO, "engine"):
        run(fleet, HostCheckRule.WARN, 2)
    assert f"is slow: {SENTENCE}" in caplog.text


@pytest.mark.nightly
def test_hosts_that_were_not_measured_of_late_are_measured_once(
    fleet: CheckedHosts, caplog: pytest.LogCaptureFixture
) -> None:
    find_slow(fleet)
    before = len(fleet.hook.store.host_rates.past(fleet.names))
    with caplog.at_level(logging.INFO, "engine"):
        run(fleet, HostCheckRule.WARN, 4, every_s=0.0)
    assert f"Checked {', '.join(fleet.names)} in " in caplog.text
    after = len(fleet.hook.store.host_rates.past(fleet.names))
    assert after > before
    run(fleet, HostCheckRule.WARN, 4)
    assert len(fleet.hook.store.host_rates.past(fleet.names)) == after
