"""Python stacks of the ranks of a gang that hangs, collected before it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.stack_text import places_of_ranks
from airflow_provider_dtrain.engine.logs.task_log import printable
from airflow_provider_dtrain.errors import HostError, RankHangsError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime

#: Longer than a host waits for its ranks.
STACKS_TIMEOUT_S = 10.0
#: Most characters of the stack that the failure shows.
SHOWN_CHARACTERS = 8192


async def with_stacks(rt: Runtime, run: str, hosts: Iterable[str], error: RankHangsError) -> RankHangsError:
    """Return the error of a hang with the lines at which the ranks are, and the stack of the rank that it names."""
    calls = [rt.call(host, "stacks", timeout_s=STACKS_TIMEOUT_S, run=run) for host in hosts]
    stacks: dict[int, str] = {}
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, HostError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        stacks |= _texts(answer)
    places = places_of_ranks(stacks)
    if not places:
        return _again(error, f"{error} No rank has written its stacks. The next time, use py-spy dump on that host.")
    own = stacks.get(error.rank, "") if error.rank is not None else ""
    return _again(error, f"{error} {places[:1].upper()}{places[1:]}.\n{own[:SHOWN_CHARACTERS]}".rstrip())


def _texts(answer: JsonObject) -> dict[int, str]:
    return {one["rank"]: printable(one["text"]) for one in answer["ranks"] if one["text"]}


def _again(error: RankHangsError, message: str) -> RankHangsError:
    return RankHangsError(message, rank=error.rank, host=error.host, cause_kind=error.cause_kind or "hang")
