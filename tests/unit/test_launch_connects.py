"""A new follower connects to the hosts of a gang while it reads the job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import launch
from airflow_provider_dtrain.errors import ConfigError, HostUnreachableError, Problem

BAD = ConfigError([Problem(path="entrypoint", message="it is empty")])
DOWN = HostUnreachableError("b", "Host 'b' is down.")
VIEW: Any = SimpleNamespace(placement={"a": (0,), "b": (1,)})


@dataclass(frozen=True)
class Job:
    config: Any = None
    secrets: Any = None


class Follower:
    """Follower whose job is read once the connections have begun."""

    def __init__(self, down: str = "") -> None:
        self.down = down
        self.connecting: set[str] = set()
        self.both = asyncio.Event()

    async def link(self, host: str, *, to_launch: bool) -> str:
        assert to_launch
        self.connecting.add(host)
        if len(self.connecting) == 2:
            self.both.set()
        if host == self.down:
            raise DOWN
        return f"link to {host}"


async def begun(monkeypatch: pytest.MonkeyPatch, follower: Follower, error: Exception | None = None) -> Any:
    async def read(rt: Follower, view: Any) -> Job:
        await asyncio.wait_for(rt.both.wait(), 10.0)
        if error is not None:
            raise error
        return Job()

    async def secrets(config: Any, known: Any) -> dict[str, str]:
        return {"KEY": "value"}

    monkeypatch.setattr(launch, "job_of", read)
    monkeypatch.setattr(launch, "with_connection", secrets)
    rt: Any = follower
    return await launch._begun(rt, VIEW)


def test_the_connections_begin_before_the_job_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        job, links = await begun(monkeypatch, Follower())
        assert job.secrets == {"KEY": "value"}
        assert links == {"a": "link to a", "b": "link to b"}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("down", "error", "raised"), [("b", None, DOWN), ("", BAD, BAD), ("b", BAD, BAD)], ids=["host", "job", "both"]
)
def test_an_error_of_the_job_comes_before_one_of_a_host(
    monkeypatch: pytest.MonkeyPatch, down: str, error: Exception | None, raised: Exception
) -> None:
    async def main() -> None:
        with pytest.raises(type(raised)) as found:
            await begun(monkeypatch, Follower(down), error)
        assert found.value is raised

    asyncio.run(main())
