"""TensorBoard files of a trial, written on this machine from the metrics in the store."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import TENSORBOARD_S
from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.engine.copies.event_files import (
    restart_event,
    scalars_event,
    scalars_of,
    version_event,
)
from airflow_provider_dtrain.engine.copies.keeper import Keeper
from airflow_provider_dtrain.engine.copies.mirror import make_private
from airflow_provider_dtrain.engine.session.threads import in_copy_thread
from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.resources.metrics import MetricReport
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store

#: Folder below the trial's folder in ``checkpoint_dir``.
FOLDER = "tensorboard"
#: Rows that are read at a time.
ROWS = 10_000
#: Name of a file: attempt and number of the follower that writes it.
_NAME = re.compile(r"events\.out\.tfevents\.\d+\.dtrain\.(\d+)\.(\d+)", re.ASCII)


def tensorboard_folder(checkpoint_dir: Path, experiment_id: int, trial_id: int) -> Path:
    """Return the folder of this machine with the TensorBoard files of a trial."""
    return trial_folder(checkpoint_dir, experiment_id, trial_id) / FOLDER


class EventFile:
    """The file of one follower. It has all metrics of the trial, also those of earlier attempts.

    So nothing is lost or repeated when another process follows the trial. The files of earlier followers are removed.
    """

    def __init__(self, store: Store, view: AttemptView, folder: Path) -> None:
        self._store = store
        self._view = view
        self._folder = folder
        self._path = folder / f"events.out.tfevents.{int(time.time())}.dtrain.{view.attempt_id}.{view.watch}"
        self._read = 0
        #: Attempt of the last row, None before the first one.
        self._attempt: int | None = None

    def write(self) -> None:
        """Append the metrics that were reported since the last call. Blocks.

        :raises OSError: the file cannot be written
        """
        if not self._path.exists():
            # At first, and after a user has removed it.
            self._read, self._attempt = 0, None
        while rows := self._store.metrics.since(self._view.trial_id, self._read, limit=ROWS):
            self._append(b"".join(self._event(row) for _, row in rows), is_first=not self._read)
            self._read = rows[-1][0]

    def _append(self, data: bytes, *, is_first: bool) -> None:
        make_private(self._folder)
        with open(self._path, "wb" if is_first else "ab") as file:
            file.write(version_event(time.time()) + data if is_first else data)
        if is_first:
            self._remove_earlier()

    def _event(self, row: MetricReport) -> bytes:
        at_s = row.at.timestamp()
        is_restart = self._attempt is not None and row.attempt != self._attempt
        self._attempt = row.attempt
        event = scalars_event(at_s, row.step, scalars_of(row.group, row.metrics))
        return restart_event(at_s, row.step) + event if is_restart else event

    def _remove_earlier(self) -> None:
        own = self._view.attempt_id, self._view.watch
        for path in self._folder.iterdir():
            found = _NAME.fullmatch(path.name)
            if found is not None and (int(found[1]), int(found[2])) < own:
                path.unlink(missing_ok=True)


def old_event_files(store: Store, checkpoint_dir: Path, cutoff: datetime) -> dict[Path, int]:
    """Return the TensorBoard files of this machine whose trials ended before the cutoff, with their bytes."""
    found: dict[int, list[Path]] = {}
    for path in checkpoint_dir.glob(f"experiment-*/trial-*/{FOLDER}/events.out.tfevents.*"):
        trial = path.parent.parent.name.removeprefix("trial-")
        if _NAME.fullmatch(path.name) and trial.isascii() and trial.isdigit() and len(trial) < 19:
            found.setdefault(int(trial), []).append(path)
    old = store.retention.ended(found, cutoff)
    return {path: path.lstat().st_size for trial, paths in found.items() if trial in old for path in paths}


def remove_event_files(paths: Iterable[Path]) -> None:
    """Remove TensorBoard files, and their folders if nothing else is in them."""
    for path in paths:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


class TensorboardKeeper(Keeper):
    """Writer of a trial's TensorBoard files while it is followed, if its configuration requests them."""

    def __init__(self, rt: Runtime, view: AttemptView, *, is_on: bool) -> None:
        super().__init__(TENSORBOARD_S)
        self.rt = rt
        self._is_on = is_on
        folder = tensorboard_folder(rt.settings.checkpoint_dir, view.experiment_id, view.trial_id)
        self._file = EventFile(rt.store, view, folder)
        self._has_failed = False

    async def run(self) -> None:
        """Write at once, every half minute until :meth:`close`, and once more then."""
        if self._is_on:
            self.wake()
            await super().run()

    async def round(self, *, is_last: bool) -> None:
        """Write the metrics that were reported since the last round."""
        try:
            await in_copy_thread(self._file.write)
        except (OSError, DtrainError) as error:
            if not self._has_failed:
                self.rt.log.warning("TensorBoard files are not written, retrying: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False
