"""The cause of each injected failure: rank, host, kind and place are right. Real ranks over gloo on two hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.netns import NamespaceHosts
from tests.support import causes
from tests.support.causes import Variation
from tests.support.engines import Engine
from tests.support.pair import register_pair

pytest.importorskip("torch")
pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.nightly]


GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def pair(namespace_hosts: Callable[..., NamespaceHosts]) -> Iterator[NamespaceHosts]:
    """Two hosts with two slots each."""
    yield namespace_hosts(count=2, slots=2)
    for group in GROUPS.rglob("dtrain-causes-*"):
        group.rmdir()


def parameters() -> list[Any]:
    found = []
    for kind, variation in causes.cases():
        number = causes.VARIATIONS.index(variation)
        marks = [pytest.mark.each_change] if (kind, number) == ("early_end", 0) else []
        if kind.startswith("kernel_kill") and not os.access(GROUPS, os.W_OK):
            marks = [pytest.mark.skip("needs the memory controller of cgroup v1")]
        found.append(pytest.param(kind, variation, id=f"{kind}-{number}", marks=marks))
    return found


@pytest.mark.parametrize(("kind", "variation"), parameters())
async def test_the_cause_of_an_injected_failure_is_found(
    engine: Engine,
    pair: NamespaceHosts,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
    kind: str,
    variation: Variation,
) -> None:
    register_pair(engine.hook, pair, monkeypatch, slots=variation.slots)
    ticket = engine.submit(causes.document(kind, variation))
    outcome = await engine.carry(ticket)
    ended_at = time.time()
    assert outcome is not None
    assert outcome.failure is not None
    attempt = engine.hook.store.attempts.of_trial(ticket.trial_id)[0]
    exits = engine.hook.store.events.of_attempt(attempt.attempt_id, kinds=("exit",))
    record_property("line", outcome.failure.message.partition("\n")[0])
    assert exits, outcome.failure
    record_property("took_s", round(ended_at - min(event.body["at"] for event in exits), 1))
    [host] = {event.host for event in exits if event.body["rank"] == variation.failing}
    assert causes.problem_of(kind, variation, outcome.failure, host) == ""
