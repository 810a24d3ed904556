"""Tests that need podman."""

from __future__ import annotations

import pytest

from testbed.containers import why_no_podman


def need_podman() -> None:
    """Skip the test unless podman runs containers on this machine."""
    if (reason := why_no_podman()) is not None:
        pytest.skip(reason)
