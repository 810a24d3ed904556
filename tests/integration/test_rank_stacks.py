"""``trials stack`` and ``trials exec`` on a running trial, with real ranks and a real supervisor."""

from __future__ import annotations

import asyncio
import dataclasses
import glob
import json
import shlex
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_dtrain.cli import trials_exec, trials_stack
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.engine.operations.execution import serve
from airflow_provider_dtrain.engine.operations.follower import serving
from airflow_provider_dtrain.store.database.tables import audit
from airflow_provider_dtrain.store.records.operations import Through
from airflow_provider_dtrain.terminal.output import user
from tests.support.api_world import Api
from tests.support.engines import Engine, config
from tests.support.http_api import HttpApi


def asked(trial_id: int, **more: object) -> Namespace:
    return Namespace(**{"trial_id": trial_id, "rank": None, "output": "table", "verbose": False, **more})


async def code_of(args: Namespace, command: Callable[[Namespace], None] = trials_stack.stack) -> int:
    """Run a command, and return its exit code."""
    try:
        await asyncio.to_thread(command, args)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.mark.parametrize("how", ["", pytest.param("trains", marks=[pytest.mark.nightly, pytest.mark.torch])])
async def test_the_stacks_of_running_ranks_are_shown_and_the_ranks_run_on(
    engine: Engine, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    document = {**config("", slots=2), "entrypoint": f"python stacked.py {how}"}
    ticket = engine.submit(document)
    assert await code_of(asked(ticket.trial_id)) == 3
    assert "has no running ranks: its attempt 1 is waiting" in capsys.readouterr().err
    carrying = asyncio.ensure_future(engine.carry(ticket))
    async with asyncio.timeout(200):
        store = engine.hook.store
        # Unlike Path.glob, it passes over a folder that is gone before it is read.
        ready = partial(glob.glob, "**/runs/*/ready-*", root_dir=tmp_path, recursive=True)
        while len(ready()) < 2 or len(store.events.ranks(ticket.attempt_id)) < 2:
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
    traced = {"batches": 2, "with_stack": False}
    assert await code_of(asked(ticket.trial_id, rank=[1], **traced), trials_stack.trace) == 0
    assert "from the next batch on, by rank 1.\nTraces of the host of rank 0" in capsys.readouterr().out
    [request] = tmp_path.glob("**/profile_requested")
    assert json.loads(request.read_text())["ranks"] == [1]
    assert await code_of(asked(ticket.trial_id, rank=[2], **traced), trials_stack.trace) == 1
    assert "has no rank 2: it has 0 to 1" in capsys.readouterr().err
    await _run_commands(engine, ticket.trial_id, capsys)
    await _ask_through_a_server(engine, ticket.trial_id, monkeypatch, tmp_path, capsys)
    (tmp_path / "go-on").touch()
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert await code_of(asked(ticket.trial_id)) == 3


async def _run_commands(engine: Engine, trial_id: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Check ``trials exec`` on the running trial."""

    def command(*argv: str, **more: object) -> Namespace:
        return asked(trial_id, **{"rank": 1, "timeout": 60, "argv": list(argv), **more})

    code = "import os, sys; print(os.environ['RANK']); sys.exit(5)"
    exec_in_rank = trials_exec.exec_in_rank
    assert await code_of(command("true"), exec_in_rank) == 1
    assert "set [dtrain] allow_exec = True" in capsys.readouterr().err
    assert audited(engine) == []
    engine.hook.settings = dataclasses.replace(engine.hook.settings, allow_exec=True)
    assert await code_of(command(sys.executable, "-c", code), exec_in_rank) == 5
    assert capsys.readouterr().out == "1\n"
    assert audited(engine) == [(user(), f"trial {trial_id} rank 1", shlex.join([sys.executable, "-c", code]))]
    assert await code_of(command("sh", "-c", "kill -9 $$"), exec_in_rank) == 128 + 9
    assert await code_of(command("sleep", "600", timeout=1), exec_in_rank) == 124
    assert "killed after 1 s" in capsys.readouterr().err
    assert await code_of(command("sh", "-c", "yes | head -c 2000000"), exec_in_rank) == 0
    shown = capsys.readouterr()
    assert len(shown.out) == 1 << 20
    assert "The output was cut" in shown.err
    assert await code_of(command("true", rank=2), exec_in_rank) == 1
    assert "has no rank 2: it has 0 to 1" in capsys.readouterr().err
    assert await code_of(command("true", timeout=3601), exec_in_rank) == 1


async def _ask_through_a_server(
    engine: Engine,
    trial_id: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check the commands of ``dtrain`` on the running trial: a follower and runs of the DAG execute them."""
    store = engine.hook.store

    def trigger(conf: dict[str, int], user: str, dag_id: str) -> str:
        taken = store.operations.take(conf["operation"], Through.DAG)
        assert taken is not None
        threading.Thread(target=serve, args=(engine.hook, taken)).start()
        return "run-1"

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", trigger)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW__DTRAIN__ALLOW_EXEC", "True")
    with HttpApi(Api(store, operations=True)) as found, serving(engine.hook, trial_id, Redactor):
        client = Client(found.url, "given")
        trial = client.trials.get(trial_id)
        stacks = await asyncio.to_thread(trial.stacks)
        assert ["in the_place_to_find" in one.text for one in stacks.ranks] == [True, True]
        done = await asyncio.to_thread(trial.exec, ["sh", "-c", "echo $RANK; exit 7"], 1)
        assert (done.output, done.exit_code) == ("1\n", 7)
        assert audited(engine)[-1] == ("ann", f"trial {trial_id} rank 1", "sh -c 'echo $RANK; exit 7'")
        whole = await asyncio.to_thread(trial.log, 1)
        assert await asyncio.to_thread(lambda: trial.log(1, start=1, end=5)) == whole[1:5]
        args = ["trials", "exec", str(trial_id), "--rank", "1", "--timeout", "1", "--server", found.url]
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        assert await asyncio.to_thread(main, [*args, "--", "sleep", "60"]) == 124
    assert "killed after 1 s" in capsys.readouterr().err


def audited(engine: Engine) -> list[tuple[str, str, str]]:
    """Return user, subject and command of each recorded command."""
    with engine.hook.store.db.engine.connect() as connection:
        rows = connection.execute(audit.select().where(audit.c.action == "exec").order_by(audit.c.id)).all()
    return [(row.by, row.subject, row.details) for row in rows]
