"""The cause of each injected failure: rank, host, kind and place are right. Real ranks over gloo on two hosts.

``python -m tests.faults.cause_table`` runs all of them and writes their table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.netns import NamespaceHosts
from tests.support import causes
from tests.support.causes import Variation
from tests.support.engines import Engine

pytest.importorskip("torch")
pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module")
def pair(namespace_hosts: Callable[..., NamespaceHosts]) -> Iterator[NamespaceHosts]:
    """Two hosts with two slots each."""
    yield namespace_hosts(count=2, slots=2)
    causes.remove_groups()


def parameters() -> list[Any]:
    found = []
    for kind, variation in causes.cases():
        number = causes.VARIATIONS.index(variation)
        marks = [pytest.mark.each_change] if (kind, number) == ("early_end", 0) else []
        if reason := causes.needs(kind):
            marks = [pytest.mark.skip(reason)]
        found.append(pytest.param(kind, variation, id=f"{kind}-{number}", marks=marks))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "variation"), parameters())
async def test_the_cause_of_an_injected_failure_is_found(
    engine: Engine, pair: NamespaceHosts, monkeypatch: pytest.MonkeyPatch, kind: str, variation: Variation
) -> None:
    found = await causes.injected(engine, pair, monkeypatch, kind, variation, most_s=180)
    assert found.problem == ""
