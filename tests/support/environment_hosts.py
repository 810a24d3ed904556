"""Hosts that build environments, and the control side that asks for one.

Use it with ``pytest_plugins = ["tests.support.environment_hosts"]``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.lock_files.platform import Platform
from airflow_provider_dtrain.core.lock_files.requirements import read_requirements
from testbed.wheels import until_ready, uv_program
from tests.support.supervisor_host import (
    Channel,
    Host,
    interpreters,
)

#: Longest time of a build in these tests, and of an answer of an index that answers.
BUILD_S, STALL_S = 60.0, 20.0


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Host]:
    """A host without uv, pip.conf and index."""
    found = Host(tmp_path / "host")
    home = tmp_path / "home"
    home.mkdir()
    found.env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    yield found
    found.clean()


@pytest.fixture
def uv_host(bare: Host) -> Host:
    """The same with uv, which takes a tenth of the time, where it is installed."""
    if (uv := uv_program()) is not None:
        place = Path(bare.env["HOME"]) / ".local" / "bin" / "uv"
        place.parent.mkdir(parents=True)
        place.symlink_to(uv)
    return bare


@pytest.fixture
def old(uv_host: Host) -> Host:
    """The same with the oldest Python that hosts may have."""
    uv_host.python = interpreters()[-1]
    if uv_host.python == sys.executable:
        pytest.skip("Python 3.9 is not installed")
    return uv_host


class Asking:
    """The control side of one environment."""

    def __init__(self, channel: Channel, lock: str, **how: Any) -> None:
        self.channel = channel
        self.pins = read_requirements(lock)[0].pins(None)
        self.changes = {name: how.pop(name) for name in ("payload", "index", "timeout_s", "stall_s") if name in how}
        self.environment = {"lock": hashlib.sha256(lock.encode()).hexdigest(), **how}

    def state(self, **more: Any) -> dict[str, Any]:
        return self.channel.call("environment", environment=self.environment, **more)

    def build(self, name: str = "build-1") -> dict[str, Any]:
        """Return the packages of a build as the control side sends them."""
        facts = self.state()["facts"]
        return {
            "id": name,
            "packages": [{"name": one.name, "version": one.version, "hashes": list(one.hashes)} for one in self.pins],
            "tags": Platform.of_facts(facts).tags(),
            "timeout_s": BUILD_S,
            "stall_s": STALL_S,
            **self.changes,
        }

    def start(self, name: str = "build-1") -> dict[str, Any]:
        return self.state(build=self.build(name), waits_for=name)

    def finish(self, name: str = "build-1") -> dict[str, Any]:
        found = until_ready(lambda: self.state(waits_for=name, wait_s=1))
        assert isinstance(found, dict)
        return found

    def run(self, name: str = "build-1") -> dict[str, Any]:
        assert self.start(name)["state"] in ("building", "ready")
        return self.finish(name)
