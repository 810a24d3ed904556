"""Copies of checkpoints on the control side, so that a lost host loses nothing that was kept."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from airflow_provider_dtrain.core.retention import Kept, Saved, unkept
from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import HostError, HostRefusedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.runtime import Runtime
    from airflow_provider_dtrain.hosts.remote import HostLink
    from airflow_provider_dtrain.store.records import AttemptView, CheckpointView


class CheckpointCopier:
    """Copies what the policy keeps while the trial runs; one copy at a time, newest state first."""

    def __init__(self, rt: Runtime, view: AttemptView, config: ExperimentConfig) -> None:
        self.rt, self.view = rt, view
        self.policy, self.metric = config.checkpoint_policy, config.searcher.metric
        self.numbers = while_running(numbers_of(config))
        self._wake, self._closing = asyncio.Event(), False
        self._said_too_large = False

    def noticed(self) -> None:
        """Take note that a checkpoint event is in the store."""
        self._wake.set()

    async def run(self) -> None:
        """Copy until :meth:`close`; then return once everything kept is copied."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Before the look: what came while it lasted needs another one.
            last = self._closing
            await self.copy_kept()
            if last:
                return

    def close(self) -> None:
        """Let :meth:`run` end after a last look."""
        self._closing = True
        self._wake.set()

    async def copy_kept(self) -> None:
        """Copy every kept checkpoint that has no copy yet, and remove copies that are kept no more."""
        checkpoints = await self.rt.db(self.rt.store.checkpoints, self.view.trial_id)
        kept = self.kept(checkpoints)
        for checkpoint in sorted(kept, key=_age, reverse=True):
            if checkpoint.copy_url is None and is_in_run_folder(checkpoint):
                await self._copy(checkpoint)
        for checkpoint in checkpoints:
            if checkpoint.copy_url is not None and checkpoint not in kept:
                await self.rt.db(self.rt.store.add_checkpoint_copy, checkpoint.checkpoint_id, None)
                await in_thread(shutil.rmtree, checkpoint.copy_url, ignore_errors=True)

    def kept(self, checkpoints: list[CheckpointView]) -> list[CheckpointView]:
        """Return the checkpoints that the policy keeps while the trial runs."""
        if self.policy == "all":
            return list(checkpoints)
        if self.policy == "none":
            return []
        gone = {one.checkpoint_id for one in unkept([as_saved(one, self.metric) for one in checkpoints], self.numbers)}
        return [one for one in checkpoints if one.checkpoint_id not in gone]

    async def _copy(self, checkpoint: CheckpointView) -> None:
        limit = self.rt.settings.checkpoint_copy_limit_bytes
        if (checkpoint.size_bytes or 0) > limit:
            if not self._said_too_large:
                self._said_too_large = True
                self.rt.log.warning(
                    "Checkpoint %s has %d bytes, above checkpoint_copy_limit (%d): it stays on host '%s' alone. "
                    "Set checkpoint_storage to shared storage, or raise the limit.",
                    checkpoint.path, checkpoint.size_bytes, limit, checkpoint.host,
                )  # fmt: skip
            return
        target = self._target(checkpoint)
        try:
            link = await self.rt.link(checkpoint.host)
            await in_thread(fetch_copy, link, checkpoint, target)
        except HostRefusedError:
            # The library removes what the policy does not keep, also while it is being fetched.
            self.rt.log.debug("Checkpoint of step %d was replaced by a newer one before it was copied", checkpoint.step)
            return
        except (HostError, OSError, tarfile.TarError, DamagedCopyError) as error:
            self.rt.log.warning("Checkpoint %s was not copied: %s", checkpoint.path, error)
            return
        await self.rt.db(self.rt.store.add_checkpoint_copy, checkpoint.checkpoint_id, str(target))

    def _target(self, checkpoint: CheckpointView) -> Path:
        folder = self.rt.settings.checkpoint_dir / f"experiment-{self.view.experiment_id}"
        return folder / f"trial-{self.view.trial_id}" / f"{checkpoint.run}-step{checkpoint.step}"


class DamagedCopyError(Exception):
    """A copy differs from what the ranks wrote."""


def numbers_of(config: ExperimentConfig) -> Kept:
    """Return how many checkpoints a configuration keeps in the end."""
    storage = config.checkpoint_storage
    return Kept(
        experiment_best=storage.save_experiment_best,
        trial_best=storage.save_trial_best,
        trial_latest=storage.save_trial_latest,
        smaller_is_better=config.searcher.smaller_is_better,
    )


def while_running(kept: Kept) -> Kept:
    """Return the numbers for one trial that still runs.

    The best of the experiment are among the best of their trials; a restart needs the latest.
    """
    return Kept(
        trial_best=max(kept.trial_best, kept.experiment_best),
        trial_latest=max(1, kept.trial_latest),
        smaller_is_better=kept.smaller_is_better,
    )


def as_saved(checkpoint: CheckpointView, metric: str | None) -> Saved:
    """Return what decides whether a checkpoint is kept."""
    value = checkpoint.metrics.get(metric) if metric else None
    return Saved(
        checkpoint_id=checkpoint.checkpoint_id,
        trial_id=checkpoint.trial_id,
        attempt=checkpoint.attempt,
        step=checkpoint.step,
        metric=float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None,
    )


def is_in_run_folder(checkpoint: CheckpointView) -> bool:
    """Return whether a checkpoint lies in the folder of its run, on one host alone."""
    return not os.path.isabs(checkpoint.path) and not is_url(checkpoint.path)


def is_url(path: str) -> bool:
    """Return whether a checkpoint lies in a bucket."""
    return "://" in path


def best_checkpoint(checkpoints: list[CheckpointView], metric: str | None, smaller_is_better: bool) -> CheckpointView:
    """Return the checkpoint with the best metric; the latest one when none has it.

    :param checkpoints: at least one
    """
    values = [(c.metrics.get(metric), c) for c in checkpoints] if metric else []
    ranked = [(value, c) for value, c in values if isinstance(value, int | float) and value == value]
    if not ranked:
        return max(checkpoints, key=_age)
    sign = 1 if smaller_is_better else -1
    return min(ranked, key=lambda pair: (sign * pair[0], -pair[1].checkpoint_id))[1]


def _age(checkpoint: CheckpointView) -> tuple[int, int, int]:
    return checkpoint.attempt, checkpoint.step, checkpoint.checkpoint_id


def fetch_copy(link: HostLink, checkpoint: CheckpointView, target: Path) -> None:
    """Copy a checkpoint from its host; it appears under its name once it is whole. Blocks.

    :raises DamagedCopyError: a file differs from what its metadata, or the store, say
    :raises tarfile.TarError: the archive is damaged or leads outside
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as temporary:
        with link.fetching(checkpoint.run, checkpoint.path) as incoming:
            unpack(cast("IO[bytes]", incoming), Path(temporary))
        entries = list(Path(temporary).iterdir())
        source = entries[0] if len(entries) == 1 and entries[0].is_dir() else Path(temporary)
        verify_copy(source, checkpoint)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(source, target)


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack a tar as it comes into a folder that is there.

    :raises tarfile.TarError: the archive is damaged or leads outside
    """
    # The way of the hosts: Python 3.11.2, which Debian 12 has, knows no filters for extractall.
    from airflow_provider_dtrain.hosts import supervisor

    try:
        with tarfile.open(fileobj=archive, mode="r|") as members:
            supervisor.unpack(members, str(folder))
    except supervisor.Refused as error:
        raise tarfile.TarError(str(error)) from error


def verify_copy(folder: Path, checkpoint: CheckpointView) -> None:
    """Check metadata and files of a copy against their sha256.

    What a program without the library wrote has neither and is taken as it is.

    :raises DamagedCopyError: something differs
    """
    from airflow_provider_dtrain.train.checkpoint import METADATA, whole
    from airflow_provider_dtrain.train.errors import CheckpointError

    if checkpoint.sha256 is None and not (folder / METADATA).exists():
        return
    try:
        found = whole(folder)
    except CheckpointError as error:
        raise DamagedCopyError(str(error)) from error
    if checkpoint.sha256 is not None and found.sha256 != checkpoint.sha256:
        raise DamagedCopyError(f"{METADATA} is not the one that the event of step {checkpoint.step} tells of")


def send(link: HostLink, run: str, relpath: str, folder: Path, name: str) -> None:
    """Put a folder of this machine below a path in a run's folder, under a name. Blocks."""
    with (
        link.putting(run, relpath) as outgoing,
        tarfile.open(fileobj=cast("IO[bytes]", outgoing), mode="w|") as archive,
    ):
        archive.add(folder, arcname=name)
