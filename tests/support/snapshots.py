"""Trials of snapshot.py, a plain script that resumes from its own files."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from airflow_provider_dtrain.engine.copies.output_generations import OutputCopies
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.engines import Engine


def script(arguments: str, *, restarts: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": "plain", "entrypoint": f"python snapshot.py {arguments}", "model_dir": "code",
        "max_restarts": restarts, "resources": {"slots_per_trial": 2}, **more,
    }  # fmt: skip


def starts(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what rank 0 found at each of its starts."""
    return re.findall(r"rank 0 resumes at (.*)", caplog.text)


async def until_copied(engine: Engine, ticket: Ticket, wanted: str, after: float = 0.0) -> None:
    """Wait until a copy holds a file."""
    folder = engine.hook.settings.checkpoint_dir / f"experiment-{ticket.experiment_id}" / f"trial-{ticket.trial_id}"
    async with asyncio.timeout(50):
        while True:
            found = await asyncio.to_thread(OutputCopies(folder).newest)
            if found is not None and wanted in found.manifest.files and found.manifest.at > after:
                return
            await asyncio.sleep(0.05)
