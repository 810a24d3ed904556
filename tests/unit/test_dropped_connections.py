"""The cause of a connection that a full SSH server dropped until the time was over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hosts.transport import ssh_connect

HOOK: Any = SimpleNamespace(remote_host="gpu-01", port=22, host_proxy_cmd=None)


def test_an_attempt_that_the_deadline_ends_does_not_hide_the_drops_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_connect, "_PAUSE_S", 0.0)
    deadline = time.monotonic() + 0.2
    attempts = iter(range(10))

    def begin() -> None:
        if next(attempts) < 2:
            raise ssh_connect._Dropped("Exceeded MaxStartups")
        time.sleep(max(0.0, deadline - time.monotonic()) + 0.01)
        raise HostUnreachableError("gpu-01", "it sent nothing in time")

    with pytest.raises(HostUnreachableError, match="closed 2 SSH connections.*Exceeded MaxStartups"):
        ssh_connect._until_accepted("gpu-01", HOOK, deadline, begin)


def test_another_cause_before_the_deadline_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_connect, "_PAUSE_S", 0.0)
    causes = iter([ssh_connect._Dropped("Exceeded MaxStartups"), HostUnreachableError("gpu-01", "no route")])

    def begin() -> None:
        raise next(causes)

    with pytest.raises(HostUnreachableError, match="no route"):
        ssh_connect._until_accepted("gpu-01", HOOK, time.monotonic() + 60, begin)
