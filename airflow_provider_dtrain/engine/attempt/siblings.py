"""Trials that one task runs at the same time, each by a follower of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from airflow_provider_dtrain.core.lifecycle.timing import SIBLING_RETRY_S
from airflow_provider_dtrain.engine.attempt.runner import Superseded
from airflow_provider_dtrain.engine.logs.task_log import TaskLog

T = TypeVar("T")


async def follow_all(followers: Mapping[int, Callable[[], Awaitable[T]]], logs: Mapping[int, TaskLog]) -> list[T]:
    """Return the result of each trial's follower, in the order of the trials.

    A follower that raises starts again after :data:`SIBLING_RETRY_S`, as long as another one works. So an error of one
    trial does not end the followers of the others. The error of the last one is raised: Airflow then retries the task.

    :param followers: trial -> coroutine function that follows it to its end
    :param logs: trial -> its log
    :raises Superseded: another process follows a trial
    """
    working = set(followers)

    async def follow(trial_id: int) -> T:
        while True:
            working.add(trial_id)
            try:
                return await followers[trial_id]()
            except Superseded:
                raise
            except Exception as error:
                working.discard(trial_id)
                if not working:
                    raise
                logs[trial_id].warning(
                    "The follower of trial %d failed (%s: %s). It starts again in %.0f s, because other trials of this "
                    "task still run.",
                    trial_id,
                    type(error).__name__,
                    error,
                    SIBLING_RETRY_S,
                )
                await asyncio.sleep(SIBLING_RETRY_S)
            finally:
                working.discard(trial_id)

    tasks = [asyncio.ensure_future(follow(trial_id)) for trial_id in followers]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
