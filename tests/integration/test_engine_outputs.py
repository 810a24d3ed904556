"""A plain script resumes from its own files, with real ranks and a real supervisor, without a scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import glob
import json
import logging
import re
import shutil
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli import trials_outputs as cli
from airflow_provider_dtrain.engine.attempt import launch
from airflow_provider_dtrain.engine.copies.output_generations import Generation, OutputCopies
from airflow_provider_dtrain.hosts.channel import transfer
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.engines import Engine, held, second
from tests.support.snapshots import script, starts, until_copied

pytestmark = pytest.mark.usefixtures("quick_looks")


def newest(engine: Engine, ticket: Ticket) -> Generation:
    folder = engine.hook.settings.checkpoint_dir / f"experiment-{ticket.experiment_id}" / f"trial-{ticket.trial_id}"
    found = OutputCopies(folder).newest()
    assert found is not None
    return found


async def completed(engine: Engine, ticket: Ticket) -> None:
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure


@pytest.mark.nightly
async def test_a_script_finds_its_snapshot_after_a_failure(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    ticket = engine.submit(script("5 3 raise link edit"))
    await completed(engine, ticket)
    assert starts(caplog) == ["0, seen []", "3, seen ['1:0', '1:1', '1:2']"]
    assert "from the outputs of its program: " in caplog.text
    found = newest(engine, ticket)
    names = {"work/snapshot.pt", "work/edited.py", "checkpoints/seen.txt", *(f"work/plots/{n}.txt" for n in range(5))}
    assert set(found.manifest.files) == names
    assert (found.manifest.attempt, found.manifest.is_final, found.manifest.others) == (2, True, 1)
    assert found.path("work/snapshot.pt").read_text().startswith("5 ")
    assert found.path("checkpoints/seen.txt").read_text().split() == ["1:0", "1:1", "1:2", "2:3", "2:4"]
    # A file of the code that was not changed is no output; the link is none either.
    assert found.path("work/edited.py").read_text().count("epoch") == 5
    assert "1 output(s) are links" in caplog.text


@pytest.mark.nightly
async def test_outputs_are_listed_and_downloaded_from_the_copy_or_from_the_host(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    ticket = engine.submit(script("3 -1 never", restarts=0))
    await completed(engine, ticket)
    here = newest(engine, ticket).folder
    for number in range(2):
        asked = Namespace(trial_id=ticket.trial_id, output="json", verbose=False)
        await asyncio.to_thread(cli.outputs, asked)
        shown = capsys.readouterr()
        rows = {row["path"]: row["size"] for row in json.loads(shown.out)}
        assert set(rows) == {"work/snapshot.pt", "checkpoints/seen.txt", *(f"work/plots/{n}.txt" for n in range(3))}
        assert rows["work/snapshot.pt"] == 1002
        assert "copied from host 'local'" in shown.err
        target = tmp_path / f"got{number}"
        wanted = Namespace(**vars(asked), path=["work/plots", "work/snapshot.pt"], to=str(target))
        await asyncio.to_thread(cli.download, wanted)
        names = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
        assert names == set(rows) - {"checkpoints/seen.txt"}
        assert (target / "work" / "snapshot.pt").read_text().startswith("3 ")
        # An existing file is never replaced.
        (target / "work" / "snapshot.pt").write_text("mine")
        with pytest.raises(SystemExit):
            await asyncio.to_thread(cli.download, wanted)
        assert (target / "work" / "snapshot.pt").read_text() == "mine"
        assert "--to" in capsys.readouterr().err
        # The second time this machine has no copy.
        shutil.rmtree(here, ignore_errors=True)
    outside = {**vars(wanted), "path": ["work/../.."], "to": str(tmp_path / "x")}
    with pytest.raises(SystemExit) as left:
        await asyncio.to_thread(cli.download, Namespace(**outside))
    assert left.value.code == 2
    assert not (tmp_path / "x").exists()


async def test_of_a_program_of_the_training_library_only_tensorboard_files_are_kept(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    ticket = engine.submit(script("3 -1 never joins", restarts=0, tensorboard=True))
    await completed(engine, ticket)
    folder = engine.hook.settings.checkpoint_dir / f"experiment-{ticket.experiment_id}" / f"trial-{ticket.trial_id}"
    assert OutputCopies(folder).newest() is None
    [file] = (folder / "tensorboard").iterdir()
    assert file.read_bytes().count(b"training/loss") == 3
    wanted = Namespace(
        trial_id=ticket.trial_id, output="json", verbose=False, path=["tensorboard"], to=str(tmp_path / "b")
    )
    await asyncio.to_thread(cli.download, wanted)
    assert (tmp_path / "b" / "tensorboard" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(SystemExit):
        await asyncio.to_thread(cli.download, wanted)
    assert "--to" in capsys.readouterr().err
    shutil.rmtree(folder / "tensorboard")
    with pytest.raises(SystemExit):
        await asyncio.to_thread(cli.download, wanted)
    assert "has no TensorBoard files" in capsys.readouterr().err


@pytest.mark.nightly
async def test_a_host_that_is_lost_takes_along_only_what_was_written_since_the_last_copy(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    engine.hook.settings = dataclasses.replace(engine.hook.settings, output_sync_period_s=0.1)
    second(engine, tmp_path / "second")
    ticket = engine.submit(script("5 3 kill wait"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until_copied(engine, ticket, "work/plots/2.txt")
    # From here on its disk is gone; rank 0 kills the supervisor.
    [folder] = tmp_path.glob("*/runs/*/work")
    shutil.move(folder, tmp_path / "lost")
    (tmp_path / "go-on").touch()
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert starts(caplog)[1].startswith("3, seen")
    hosts = [set(one.plan["plans"]) for one in engine.hook.store.attempts.of_trial(ticket.trial_id) if one.plan]
    assert sorted(map(sorted, hosts)) == [["local"], ["other"]]
    assert re.search(r"Outputs that rank 0 wrote on host '\w+' since the last copy \(of attempt 1, 20", caplog.text)


@pytest.mark.nightly
async def test_a_copy_that_breaks_off_never_replaces_a_whole_one(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    engine.hook.settings = dataclasses.replace(engine.hook.settings, output_sync_period_s=0.1)
    ticket = engine.submit(script("5 3 raise wait"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until_copied(engine, ticket, "work/plots/2.txt")
    # Each archive ends after its first block from now on, as when the host goes in the middle of a copy.
    whole = transfer.Incoming.read
    given: dict[int, int] = {}

    def cut(incoming: transfer.Incoming, count: int = -1) -> bytes:
        given[id(incoming)] = given.get(id(incoming), 0) + 1
        return whole(incoming, count)[:700] if given[id(incoming)] == 1 else b""

    monkeypatch.setattr(transfer.Incoming, "read", cut)
    (tmp_path / "go-on").touch()
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert starts(caplog)[1] == "3, seen ['1:0', '1:1', '1:2']"
    found = newest(engine, ticket)
    assert (found.manifest.attempt, found.path("work/snapshot.pt").read_text()[:2]) == (1, "3 ")
    assert [path.name for path in found.folder.parent.iterdir()] == [found.folder.name]


@pytest.mark.nightly
async def test_what_a_follower_that_died_did_not_copy_is_copied_before_the_next_start(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from airflow_provider_dtrain.engine.copies.outputs import OutputKeeper

    caplog.set_level(logging.INFO)
    ticket = engine.submit(script("5 3 raise"))

    copy, calls = OutputKeeper.copy_last, iter([True])

    async def died(keeper: OutputKeeper) -> None:
        """Copy nothing the first time, as a follower that is killed at the end of an attempt."""
        if not next(calls, False):
            await copy(keeper)

    monkeypatch.setattr(OutputKeeper, "copy_last", died)
    await completed(engine, ticket)
    assert starts(caplog)[1].startswith("3, seen")


@pytest.mark.nightly
async def test_a_kill_is_heard_while_outputs_are_sent_to_the_hosts_of_the_next_attempt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    sending, is_over = threading.Event(), threading.Event()

    def send(*_: Any) -> None:
        sending.set()
        is_over.wait(60.0)

    monkeypatch.setattr(launch, "send_outputs", send)
    ticket = engine.submit(script("5 3 raise"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    async with asyncio.timeout(50):
        while not sending.is_set():
            await asyncio.sleep(0.05)
    assert engine.runtime is not None
    engine.runtime.kill()
    try:
        outcome = await asyncio.wait_for(asyncio.shield(carrying), 30.0)
    finally:
        is_over.set()
    assert outcome is not None
    assert outcome.state == "killed"
    assert held(engine) == []


@pytest.mark.nightly
async def test_what_a_killed_trial_wrote_can_be_downloaded(
    engine: Engine, tmp_path: Path
) -> None:  # fmt: skip
    ticket = engine.submit(script("5 3 raise wait"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    async with asyncio.timeout(50):
        while not glob.glob("state/runs/*/*/plots/2.txt", root_dir=tmp_path):
            await asyncio.sleep(0.05)
    engine.hook.store.control.kill(ticket.trial_id, "test")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "killed"
    # Busy machines may not have copied it within the patience.
    await until_copied(engine, ticket, "work/plots/2.txt")
    assert newest(engine, ticket).manifest.is_final


@pytest.mark.nightly
async def test_outputs_beyond_the_limit_are_named_and_the_latest_are_kept(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    engine.hook.settings = dataclasses.replace(engine.hook.settings, checkpoint_copy_limit_bytes=100)
    ticket = engine.submit(script("5 3 raise"))
    await completed(engine, ticket)
    # The snapshot alone is larger than the limit.
    assert starts(caplog) == ["0, seen []", "0, seen ['1:0', '1:1', '1:2']"]
    assert re.search(r"1 output file\(s\) with 1002 bytes are not copied.*work/snapshot\.pt", caplog.text)
    assert newest(engine, ticket).manifest.size_bytes <= 100
