"""``trials stack`` on a running trial, with real ranks and a real supervisor."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_provider_dtrain.cli import trials_stack
from tests.support.engines import Engine, config


def asked(trial_id: int, **more: object) -> Namespace:
    return Namespace(**{"trial_id": trial_id, "rank": None, "output": "table", "verbose": False, **more})


async def code_of(args: Namespace) -> int:
    """Run the command, and return its exit code."""
    try:
        await asyncio.to_thread(trials_stack.stack, args)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.mark.parametrize("how", ["", pytest.param("trains", marks=[pytest.mark.nightly, pytest.mark.torch])])
async def test_the_stacks_of_running_ranks_are_shown_and_the_ranks_run_on(
    engine: Engine, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    document = {**config("", slots=2), "entrypoint": f"python stacked.py {how}"}
    ticket = engine.submit(document)
    assert await code_of(asked(ticket.trial_id)) == 3
    assert "has no running ranks: its attempt 1 is waiting" in capsys.readouterr().err
    carrying = asyncio.ensure_future(engine.carry(ticket))
    async with asyncio.timeout(200):
        store = engine.hook.store
        while len(list(tmp_path.glob("**/runs/*/ready-*"))) < 2 or len(store.events.ranks(ticket.attempt_id)) < 2:
            assert not carrying.done()
            await asyncio.sleep(0.02)
    for _ in range(5):
        assert await code_of(asked(ticket.trial_id)) == 0
        shown = capsys.readouterr().out
        assert shown.count("in the_place_to_find") == 2
        assert "rank 0 on local, pid " in shown
        assert "rank 1 on local, pid " in shown
    assert await code_of(asked(ticket.trial_id, rank=1, output="json")) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["rank"], row["host"], row["problem"]) == (1, "local", "")
    assert "in the_place_to_find" in row["text"]
    assert await code_of(asked(ticket.trial_id, rank=2)) == 1
    assert "has no rank 2: it has 0 to 1" in capsys.readouterr().err
    (tmp_path / "go-on").touch()
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert await code_of(asked(ticket.trial_id)) == 3
