"""Copies are made round by round, and none is missed at the end."""

from __future__ import annotations

import asyncio

from airflow_provider_dtrain.engine.copies.keeper import Keeper

SOON_S = 10.0


class Recorder(Keeper):
    """Keeper that records its rounds, and what happens during the first one."""

    def __init__(self, period_s: float | None, during: str = "") -> None:
        super().__init__(period_s)
        self.during = during
        self.rounds: list[bool] = []

    async def round(self, *, is_last: bool) -> None:
        self.rounds.append(is_last)
        if len(self.rounds) == 1 and self.during:
            getattr(self, self.during)()


async def rounds_of(keeper: Recorder) -> list[bool]:
    await asyncio.wait_for(keeper.run(), SOON_S)
    return keeper.rounds


async def test_an_end_during_a_round_gets_a_last_round_of_its_own() -> None:
    keeper = Recorder(None, during="close")
    keeper.wake()
    assert await rounds_of(keeper) == [False, True]


async def test_a_request_during_a_round_gets_another_one_before_the_last() -> None:
    keeper = Recorder(None, during="wake")
    keeper.wake()
    running = asyncio.ensure_future(rounds_of(keeper))
    async with asyncio.timeout(SOON_S):
        while len(keeper.rounds) < 2:
            await asyncio.sleep(0)
    keeper.close()
    assert await running == [False, False, True]


async def test_a_keeper_that_was_closed_before_it_runs_has_one_round() -> None:
    keeper = Recorder(3600.0)
    keeper.close()
    assert await rounds_of(keeper) == [True]


async def test_a_period_begins_rounds_without_a_request() -> None:
    keeper = Recorder(0.001, during="wake")
    running = asyncio.ensure_future(rounds_of(keeper))
    async with asyncio.timeout(SOON_S):
        while len(keeper.rounds) < 3:
            await asyncio.sleep(0)
    keeper.close()
    assert (await running)[-1] is True


async def test_without_a_period_there_is_no_round_before_a_request() -> None:
    keeper = Recorder(None)
    running = asyncio.ensure_future(rounds_of(keeper))
    for _ in range(10):
        await asyncio.sleep(0)
    assert keeper.rounds == []
    keeper.close()
    assert await running == [True]
