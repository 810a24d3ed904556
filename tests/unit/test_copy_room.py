"""The latest checkpoint gets the room of older copies, also of those that the number of copies has already ended."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.engine.copies.checkpoints import CheckpointCopier
from airflow_provider_dtrain.store.records.trials import CheckpointView


class Host:
    """A host with checkpoints of given sizes in bytes, by step."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes

    @contextlib.contextmanager
    def fetching(self, _: str, path: str) -> Iterator[IO[bytes]]:
        """Send a checkpoint as an archive."""
        step = int(path.rpartition("-")[2])
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo(f"step-{step}/state.bin")
            member.size = self.sizes[step]
            tar.addfile(member, io.BytesIO(bytes(member.size)))
        archive.seek(0)
        yield archive


class Checkpoints:
    """The store's checkpoints of one trial."""

    def __init__(self) -> None:
        self.views: dict[int, CheckpointView] = {}

    def of_trial(self, _: int) -> list[CheckpointView]:
        return list(self.views.values())

    def add_copy(self, checkpoint_id: int, url: str | None, *, size_bytes: int | None = None) -> None:
        view = self.views[checkpoint_id]
        self.views[checkpoint_id] = dataclasses.replace(view, copy_url=url, size_bytes=size_bytes or view.size_bytes)

    def copied(self) -> list[int]:
        """Return the steps that have a copy."""
        return [one.step for one in self.views.values() if one.copy_url is not None and Path(one.copy_url).is_dir()]


class Scene:
    """A copier, its host and its store."""

    def __init__(self, folder: Path, *, copies: int, limit_bytes: int, **config: Any) -> None:
        self.host, self.checkpoints = Host({}), Checkpoints()
        settings = SimpleNamespace(
            checkpoint_dir=folder,
            checkpoint_copy_limit_bytes=limit_bytes,
            trial_copy_limit_bytes=limit_bytes,
            trial_copies=copies,
        )
        rt: Any = SimpleNamespace(
            settings=settings,
            store=SimpleNamespace(checkpoints=self.checkpoints),
            log=logging.getLogger("room"),
            db=self.call,
            link=self.link,
        )
        view: Any = SimpleNamespace(experiment_id=1, trial_id=1)
        self.copier = CheckpointCopier(rt, view, ExperimentConfig.model_validate(config))

    async def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    async def link(self, _: str) -> Host:
        return self.host

    def save(self, step: int, size: int) -> None:
        """Let the host report a checkpoint."""
        self.host.sizes[step] = size
        path = f"checkpoints/step-{step}"
        self.checkpoints.views[step] = CheckpointView(
            checkpoint_id=step,
            trial_id=1,
            attempt=1,
            run="t1.1.1",
            host="a",
            step=step,
            path=path,
            size_bytes=100,
            sha256=None,
            metrics={},
            at=datetime(2026, 1, 1, tzinfo=UTC),
            copy_url=None,
            place=self.copier.places.find(path),
        )


async def test_copies_that_are_no_longer_kept_make_room_for_the_latest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path, copies=2, limit_bytes=150_000, checkpoint_policy="all")
    for step, size in ((1, 90_000), (2, 50_000)):
        scene.save(step, size)
        await scene.copier.round(is_last=False)
    assert scene.checkpoints.copied() == [1, 2]
    # Two that come at once: the last two are neither of the copies.
    scene.save(3, 10)
    scene.save(4, 80_000)
    await scene.copier.round(is_last=False)
    assert scene.checkpoints.copied() == [3, 4]
    assert "stays only on host" not in caplog.text


async def test_a_checkpoint_that_fits_keeps_the_copies_until_it_has_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path, copies=2, limit_bytes=150_000, checkpoint_policy="all")
    for step, size in ((1, 70_000), (2, 70_000), (3, 140_000)):
        scene.save(step, size)
        await scene.copier.round(is_last=False)
    assert scene.checkpoints.copied() == [3]


async def test_copies_that_are_no_longer_kept_go_before_those_that_are(tmp_path: Path) -> None:
    scene = Scene(tmp_path, copies=2, limit_bytes=150_000, checkpoint_policy="all")
    for step, size in ((1, 50_000), (2, 50_000), (3, 100_000)):
        scene.save(step, size)
        await scene.copier.round(is_last=False)
    assert scene.checkpoints.copied() == [2, 3]


async def test_a_checkpoint_that_never_fits_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(tmp_path, copies=2, limit_bytes=150_000, checkpoint_policy="all")
    scene.save(1, 200_000)
    await scene.copier.round(is_last=False)
    await scene.copier.round(is_last=False)
    assert scene.checkpoints.copied() == []
    assert caplog.text.count("stays only on host") == 1
