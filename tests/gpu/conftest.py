"""Fixtures of the tests on a real GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.supervisor_host import Host


@pytest.fixture
def one_host(tmp_path: Path) -> Iterator[Host]:
    """A host with this interpreter."""
    found = Host(tmp_path / "host")
    yield found
    found.clean()
