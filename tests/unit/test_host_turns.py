"""Commands that a host runs in threads take turns, because its channel refuses more than it has threads for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from airflow_provider_dtrain.engine.session.runtime import TURNS, answer
from airflow_provider_dtrain.supervisor.limits import MAX_THREADS


class Link:
    """A channel whose answers the test gives."""

    def __init__(self, host: str = "a") -> None:
        self.host = host
        self.asked: list[Future[Any]] = []

    def call(self, _command: str, **_arguments: Any) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_turns_leave_threads_of_a_channel_to_other_commands() -> None:
    assert sum(TURNS.values()) <= MAX_THREADS - 8


@pytest.mark.each_change
async def test_many_launches_at_once_take_turns_and_delay_no_end() -> None:
    link, other = Link(), Link("b")
    most = TURNS["preflight"]
    launches = [asyncio.ensure_future(answer(link, "preflight")) for _ in range(3 * most)]
    await settled()
    assert len(link.asked) == most
    ends = [asyncio.ensure_future(answer(one, command)) for one, command in ((link, "fence"), (other, "preflight"))]
    await settled()
    assert (len(link.asked), len(other.asked)) == (most + 1, 1)
    for answered in range(2 * most):
        link.asked[answered if answered < most else answered + 1].set_result({})
        await settled()
        assert len(link.asked) == most + 2 + answered
    for left in [*link.asked, *other.asked]:
        if not left.done():
            left.set_result({})
    assert await asyncio.gather(*launches, *ends) == [{}] * (3 * most + 2)


async def test_a_launch_that_is_cancelled_or_fails_passes_its_turn_on() -> None:
    link = Link()
    launches = [asyncio.ensure_future(answer(link, "preflight")) for _ in range(TURNS["preflight"] + 2)]
    await settled()
    link.asked[0].set_exception(OSError("it failed"))
    launches[1].cancel()
    await settled()
    assert len(link.asked) == len(launches)
    for one in launches[2:]:
        one.cancel()
    found = await asyncio.gather(*launches, return_exceptions=True)
    assert isinstance(found[0], OSError)


def test_each_event_loop_has_its_own_turns() -> None:
    async def many() -> None:
        link = Link()
        launches = [asyncio.ensure_future(answer(link, "preflight")) for _ in range(2 * TURNS["preflight"])]
        await settled()
        for one in launches:
            one.cancel()
        await asyncio.gather(*launches, return_exceptions=True)

    for _ in range(2):
        asyncio.run(many())
