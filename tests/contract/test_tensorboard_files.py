"""TensorBoard files of a trial, as TensorBoard's own reader finds them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.copies import tensorboard
from airflow_provider_dtrain.engine.copies.event_files import crc32c, scalars_event, scalars_of, version_event
from airflow_provider_dtrain.engine.copies.tensorboard import (
    EventFile,
    TensorboardKeeper,
    old_event_files,
    remove_event_files,
    tensorboard_folder,
)
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host

FAILED = {"error": "RankFailedError", "kind": "user", "message": "it failed", "host": None, "rank": 0}


class Trial:
    """A trial whose rank 0 reports metrics."""

    def __init__(self, store: Store, ticket: Ticket, watch: int) -> None:
        self.store, self.ticket, self.watch = store, ticket, watch
        self.offset = self.seq = 0

    def report(self, *steps: int, kind: str = "report", **metrics: Any) -> None:
        """Commit one report per step. A metric that is a function gets the step."""
        batch = [
            {
                "seq": self.seq + number,
                "at": 1000.0 + step,
                "kind": kind,
                "step": step,
                "metrics": {name: value(step) if callable(value) else value for name, value in metrics.items()},
            }
            for number, step in enumerate(steps)
        ]
        old = self.offset
        self.seq, self.offset = self.seq + len(batch), old + 10
        self.store.events.commit(
            self.ticket.attempt_id, self.watch, "a", "rank0.events", old, old + 10, batch, clock_offset_s=0.0
        )

    def restart(self) -> Trial:
        """Return the trial in its next attempt."""
        again = self.store.attempts.next(self.ticket.attempt_id, self.watch, failure=FAILED, counted=True)
        watch = self.store.attempts.watch(again.attempt_id, watcher="test")
        self.store.attempts.set_running(again.attempt_id, watch)
        return Trial(self.store, again, watch)

    def file(self, folder: Path) -> EventFile:
        return EventFile(self.store, self.store.attempts.get(self.ticket.attempt_id), folder)


@pytest.fixture
def trial(store: Store, submit: Callable[..., Ticket], start: Callable[[Ticket], int]) -> Trial:
    store.hosts.add(host("a", 2))
    ticket = submit(slots=1)
    return Trial(store, ticket, start(ticket))


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return tag -> (step, value), as TensorBoard shows them."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(module, reason="tensorboard is not installed").EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(event.step, round(event.value, 5)) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def test_reports_and_validations_are_scalars_of_their_steps(trial: Trial, tmp_path: Path) -> None:
    trial.report(1, 2, 300, loss=lambda step: 1 / step, lr=1)
    trial.report(300, kind="validation", accuracy=0.9)
    trial.file(tmp_path / "new").write()
    assert read(tmp_path / "new") == {
        "training/loss": [(1, 1.0), (2, 0.5), (300, 0.00333)],
        "training/lr": [(1, 1.0), (2, 1.0), (300, 1.0)],
        "validation/accuracy": [(300, 0.9)],
    }


def test_later_reports_are_appended_once(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "ROWS", 2)
    folder = tmp_path / "logs"
    file = trial.file(folder)
    for steps in ((1, 2, 3, 4), (), (5,)):
        trial.report(*steps, loss=0.5)
        file.write()
    [path] = folder.iterdir()
    assert read(folder) == {"training/loss": [(step, 0.5) for step in range(1, 6)]}
    path.unlink()
    file.write()
    assert read(folder) == {"training/loss": [(step, 0.5) for step in range(1, 6)]}


def test_a_resumed_attempt_replaces_the_steps_that_it_repeats(trial: Trial, tmp_path: Path) -> None:
    trial.report(1, 2, 3, 4, loss=1.0)
    folder = tmp_path / "logs"
    file = trial.file(folder)
    file.write()
    second = trial.restart()
    second.report(3, 4, 5, loss=0.25)
    expected = {"training/loss": [(1, 1.0), (2, 1.0), (3, 0.25), (4, 0.25), (5, 0.25)]}
    file.write()
    assert read(folder) == expected
    # The follower of the next attempt writes a file of its own, and removes this one.
    second.file(folder).write()
    assert len(list(folder.iterdir())) == 1
    assert read(folder) == expected


def test_a_file_of_the_user_stays(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.mine").write_bytes(version_event(1.0))
    trial.report(1, loss=1.0)
    trial.file(tmp_path).write()
    assert (tmp_path / "events.out.tfevents.1.mine").exists()


def test_values_and_names_of_user_code_cannot_break_a_file(tmp_path: Path) -> None:
    values = scalars_of("training", {"a" * 256: 1e300, "huge": -(10**400), "text": "x", "flag": True, "\ud800": 0.5})
    data = (
        version_event(1.0) + scalars_event(2.0, 2**63 - 1, values) + scalars_event(3.0, 3, {"training/nan": math.nan})
    )
    (tmp_path / "events.out.tfevents.1.x").write_bytes(data)
    found = read(tmp_path)
    assert found["training/" + "a" * 256] == [(2**63 - 1, math.inf)]
    assert found["training/huge"] == [(2**63 - 1, -math.inf)]
    assert found["training/?"] == [(2**63 - 1, 0.5)]
    assert {"training/text", "training/flag"}.isdisjoint(found)


def test_the_checksum_is_that_of_the_specification() -> None:
    # Source: RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(32))) == 0x46DD794E


def runtime(trial: Trial, folder: Path) -> Any:
    return SimpleNamespace(
        store=trial.store, settings=SimpleNamespace(checkpoint_dir=folder), log=logging.getLogger("engine")
    )


async def test_a_follower_writes_while_the_trial_runs_and_at_its_end(trial: Trial, tmp_path: Path) -> None:
    view = trial.store.attempts.get(trial.ticket.attempt_id)
    keeper = TensorboardKeeper(runtime(trial, tmp_path), view, is_on=True)
    folder = tensorboard_folder(tmp_path, view.experiment_id, view.trial_id)
    trial.report(1, loss=1.0)
    task = asyncio.ensure_future(keeper.run())
    async with asyncio.timeout(60):
        while not folder.is_dir() or not read(folder):
            await asyncio.sleep(0.01)
    trial.report(2, loss=0.5)
    keeper.close()
    await task
    assert read(folder) == {"training/loss": [(1, 1.0), (2, 0.5)]}


async def test_without_the_option_nothing_is_written(trial: Trial, tmp_path: Path) -> None:
    trial.report(1, loss=1.0)
    view = trial.store.attempts.get(trial.ticket.attempt_id)
    await TensorboardKeeper(runtime(trial, tmp_path), view, is_on=False).run()
    assert list(tmp_path.rglob("events*")) == []


async def test_a_folder_that_cannot_be_written_is_a_warning(
    trial: Trial, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial.report(1, loss=1.0)
    (tmp_path / "file").write_text("")
    view = trial.store.attempts.get(trial.ticket.attempt_id)
    keeper = TensorboardKeeper(runtime(trial, tmp_path / "file"), view, is_on=True)
    keeper.close()
    await keeper.run()
    assert "TensorBoard files are not written" in caplog.text


def test_files_of_trials_that_ended_long_ago_are_removed_and_no_others(trial: Trial, tmp_path: Path) -> None:
    store, own = trial.store, tensorboard_folder(tmp_path, 1, 1)
    trial.report(1, loss=1.0)
    trial.file(own).write()
    others = [own / "events.out.tfevents.1.of-the-user", tensorboard_folder(tmp_path, 1, 99) / "x"]
    strange = tmp_path / "experiment-1" / "trial-one" / "tensorboard" / next(own.iterdir()).name
    for path in (*others, strange):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"kept")
    later = store.db.now() + timedelta(days=1)
    assert old_event_files(store, tmp_path, later) == {}
    store.attempts.end(trial.ticket.attempt_id, trial.watch, state="completed")
    assert old_event_files(store, tmp_path, store.db.now() - timedelta(days=1)) == {}
    found = old_event_files(store, tmp_path, later)
    assert [path.parent for path in found] == [own]
    assert all(found.values())
    remove_event_files(found)
    assert list(own.iterdir()) == [others[0]]
    assert strange.exists()
    others[0].rename(own / next(iter(found)).name)
    remove_event_files(found)
    assert not own.exists()
    assert old_event_files(store, tmp_path / "nothing", later) == {}
