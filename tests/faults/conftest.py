"""Worlds of the fault tests. They require root, and the tests of a module share one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from testbed.netns import missing
from tests.faults.world import World


@pytest.fixture(scope="module")
def new_world() -> Iterator[Callable[..., World]]:
    """Factory of worlds, with the arguments of ``World``. All are closed after the module."""
    if reason := missing():
        pytest.skip(reason)
    made: list[World] = []

    def make(*arguments: object, **options: object) -> World:
        made.append(World(*arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    """Three hosts of two slots, SQLite, one trigger process."""
    return new_world("sqlite")


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undo the faults that a failed test has left, because the next test shares its world."""
    yield
    if "world" in request.fixturenames:
        request.getfixturevalue("world").heal()


@pytest.fixture
def dice() -> random.Random:
    return random.Random(7)
