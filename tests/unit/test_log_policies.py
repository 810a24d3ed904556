"""Order of a cause and of the log policy that was applied to it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.sections import LogPolicy
from airflow_provider_dtrain.engine.attempt.log_policies import apply_policies
from airflow_provider_dtrain.errors import DtrainError, HostError, LogPolicyError, RankFailedError

LINE = "torch.OutOfMemoryError: CUDA out of memory."


class Host:
    """A follower whose only host finds a line of rank 1."""

    log = logging.getLogger("test")

    async def call(self, *_: Any, **__: Any) -> Any:
        return {"matches": {"0": {"rank": 1, "line": LINE}}, "unfinished": [], "refused": {}}

    async def redactor(self) -> Any:
        return SimpleNamespace(rank_text=str)


async def applied(action: str, kind: str | None) -> DtrainError:
    error = RankFailedError(
        rank=0, host="a", exit_code=1, traceback="the traceback", message="the cause", cause_kind=kind
    )
    view: Any = SimpleNamespace(run="r", placement={"a": (0, 1)})
    policy = LogPolicy.model_validate({"name": "OOM", "pattern": "CUDA", "action": action})
    rt: Any = Host()
    return await apply_policies(rt, view, [policy], error)


@pytest.mark.parametrize("action", ["cancel_retries", "exclude_host"])
@pytest.mark.parametrize("kind", ["device_memory", "out_of_memory", "device_broken", "disk_full", "killed"])
async def test_a_cause_that_says_what_to_do_comes_before_the_policy(action: str, kind: str) -> None:
    found = await applied(action, kind)
    first, second, *rest = str(found).splitlines()
    assert first.startswith("Rank 0 on host 'a' failed first")
    assert f"Log policy 'OOM' ({action}) matches a line of rank 1 on 'a': {LINE}" in second
    assert rest == ["the traceback"]
    assert isinstance(found, LogPolicyError if action == "cancel_retries" else HostError)
    assert (found.cause_kind, found.rank, found.host) == (kind, 0, "a")


@pytest.mark.parametrize("kind", ["exception", "exit_code", None])
async def test_the_line_that_a_user_has_chosen_comes_before_an_exception(kind: str | None) -> None:
    found = await applied("cancel_retries", kind)
    assert str(found).startswith("Log policy 'OOM' (cancel_retries) matches a line of rank 1 on 'a'")
    assert "the cause" in str(found).splitlines()[1]
    assert isinstance(found, LogPolicyError)
    assert (found.cause_kind, found.rank) == (kind, 1)
