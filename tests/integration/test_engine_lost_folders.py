"""Hosts that lose their folders while trials run: no slot leaks, and the trial goes on. Real supervisors and ranks."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.operations.host_checks import host_checks
from airflow_provider_dtrain.engine.operations.probes import probe_hosts
from airflow_provider_dtrain.engine.session.runtime import Runtime
from airflow_provider_dtrain.engine.upkeep.recovery import RecoveryPass
from tests.support.engines import Engine, config, held, processes, second


async def running(engine: Engine, carrying: asyncio.Future[object], word: str, attempt: int) -> None:
    """Wait until the ranks of an attempt run."""

    def is_so() -> bool:
        trial = engine.hook.store.trials.list()[0]
        view = engine.hook.store.attempts.get(trial.attempt_id)
        return view.number == attempt and view.state == "running" and len(processes(word)) == 4

    async with asyncio.timeout(90):
        while not is_so():
            assert not carrying.done(), carrying.result()
            await asyncio.sleep(0.05)


@pytest.mark.nightly
def test_a_host_that_answers_and_cannot_start_a_run_is_shown_as_such_until_a_probe_finds_it_repaired(
    engine: Engine, tmp_path: Path
) -> None:
    hook = engine.hook
    record = hook.store.hosts.get("local")
    assert [row["problem"] for row in probe_hosts(hook, [record], "me")] == [None]
    # The file of the test lies where a probe writes its own.
    runs = Path(str(record.state_dir)) / "runs"
    runs.rmdir()
    runs.write_text("")
    (row,) = probe_hosts(hook, [record], "me")
    assert row["state"] == "unreachable"
    assert "must be a folder of user" in str(row["problem"])
    line = next(one for one in host_checks(hook) if not one["ok"])
    assert "must be a folder of user" in line["message"]
    runs.unlink()
    (row,) = probe_hosts(hook, [hook.store.hosts.get("local")], "me")
    assert (row["state"], row["problem"]) == ("ready", None)
    lines = {one["check"]: one for one in host_checks(hook)}
    assert lines["host local: launch"] == {
        "check": "host local: launch", "ok": True, "message": "files, locks, an interpreter and a fence work",
    }  # fmt: skip


async def test_recovery_does_not_call_a_host_ready_that_cannot_start_a_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = engine.hook.store
    store.hosts.set_state("local", "unreachable", "it was away")
    answers = iter([["/ has no space left"], []])

    async def call(self: Runtime, host: str, command: str, **_: Any) -> dict[str, Any]:
        return {"problems": next(answers)} if command == "probe" else {"runs": {}, "stores": {}, "slots": {}}

    monkeypatch.setattr(Runtime, "call", call)
    look = RecoveryPass(engine.hook)
    await look._probe(store, "local")
    assert store.hosts.get("local").state == "unreachable"
    await look._probe(store, "local")
    assert store.hosts.get("local").state == "ready"


@pytest.mark.nightly
@pytest.mark.parametrize("removed", ["", "runs", ".dtrain"])
async def test_a_trial_whose_host_loses_its_folders_goes_on_there_and_no_slot_leaks(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, removed: str
) -> None:
    caplog.set_level(logging.INFO)
    second(engine, tmp_path / "second" / "state")
    word = f"sleep 77{len(removed)}"
    ticket = engine.submit(config(word))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, carrying, word, 1)
    (name,) = engine.hook.store.attempts.get(ticket.attempt_id).placement
    state_dir = Path(str(engine.hook.store.hosts.get(name).state_dir))
    shutil.rmtree(tmp_path / ".dtrain" if removed == ".dtrain" else state_dir / removed)
    if removed != ".dtrain":
        await running(engine, carrying, word, 2)
        assert "its folder was removed" in caplog.text
    assert engine.runtime is not None
    engine.runtime.kill()
    outcome = await asyncio.wait_for(carrying, 60)
    assert outcome is not None
    assert outcome.state == "killed"
    assert held(engine) == []
    assert processes(word) == []
    assert "os_error" not in caplog.text
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert trial.restarts == 0, "a fault of the host is not counted"
