"""Copies of kept checkpoints on the control side, which outlive the loss of a host."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from airflow_provider_dtrain.core.checkpoint_location import (
    CheckpointPlace,
    CheckpointPlaces,
    StorageKind,
    UntrustedPathError,
    shown_path,
)
from airflow_provider_dtrain.core.checkpoint_policy import KeptCheckpoints, Saved, age_of, unkept
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, check_size
from airflow_provider_dtrain.engine.copies.keeper import Keeper
from airflow_provider_dtrain.engine.copies.mirror import NOT_COPIED, DamagedCopyError, fetched, put_in_place
from airflow_provider_dtrain.engine.session.threads import in_copy_thread, in_thread
from airflow_provider_dtrain.errors import HostRefusedError
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError, pack_tree, tree_bytes

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView, CheckpointView


#: Most files of one checkpoint.
FILES_LIMIT = 10_000
#: Deepest nesting and most values of a checkpoint's metadata: two values for each file, and those of the report.
_METADATA_DEPTH, _METADATA_VALUES = 64, 300_000


class CheckpointCopier(Keeper):
    """Copier of the checkpoints that the policy keeps while the trial runs.

    It makes one copy at a time, the newest checkpoint first.
    """

    def __init__(self, rt: Runtime, view: AttemptView, config: ExperimentConfig) -> None:
        super().__init__(period_s=None)
        self.rt = rt
        self.view = view
        self.policy = config.checkpoint_policy
        self.metric = config.searcher.metric
        self.numbers = while_running(numbers_of(config))
        storage = config.checkpoint_storage.model_dump(mode="json")
        self.places = CheckpointPlaces.of(storage, view.experiment_id, view.trial_id)
        #: Ids of checkpoints that exceed a limit. They are not tried again.
        self._reported_too_large: set[int] = set()

    def reported(self, event: Mapping[str, Any]) -> None:
        """Log a checkpoint event that is in the store, and wake the copier."""
        step = event.get("step")
        path = event.get("path")
        try:
            self.rt.log.event("Checkpoint at step %s: %s", step, self.places.find(path).path)
        except UntrustedPathError as error:
            trial = self.view.trial_id
            shown = shown_path(path)
            self.rt.log.event(
                "Checkpoint of step %s is refused, %s is not touched: %s. See: airflow dtrain trials describe %d",
                step,
                shown,
                error,
                trial,
                is_warning=True,
            )
        self.wake()

    async def round(self, *, is_last: bool) -> None:
        """Copy every kept checkpoint that has no copy yet, and remove the copies of all the rest."""
        checkpoints = await self.rt.db(self.rt.store.checkpoints.of_trial, self.view.trial_id)
        kept = self.kept(checkpoints)
        # The first to go comes first. A checkpoint that is no longer kept has its copy until its successor has one.
        copied = sorted(
            (one for one in checkpoints if one.copy_url is not None), key=lambda one: (one in kept, age_of(one))
        )
        for checkpoint in kept:
            is_new = checkpoint.copy_url is None and checkpoint.checkpoint_id not in self._reported_too_large
            if is_new and is_in_run_folder(checkpoint):
                await self._copy_with_room(checkpoint, copied, kept)
        for checkpoint in copied:
            if checkpoint not in kept:
                await self._drop_copy(checkpoint)

    async def _copy_with_room(
        self, checkpoint: CheckpointView, copied: list[CheckpointView], kept: list[CheckpointView]
    ) -> None:
        """Copy a checkpoint, and remove copies from the front of ``copied`` while they leave too little room for it."""
        while True:
            try:
                await self._copy(checkpoint)
                return
            except TrialFullError as error:
                if not copied or (copied[0] in kept and not self._may_replace(copied[0], checkpoint)):
                    self._warn_too_large(checkpoint, error)
                    return
                await self._drop_copy(copied.pop(0))

    def _may_replace(self, older: CheckpointView, checkpoint: CheckpointView) -> bool:
        """Return whether a kept copy makes room for a newer one: a restart needs the latest."""
        return self.policy == "all" and age_of(older) < age_of(checkpoint)

    async def _drop_copy(self, checkpoint: CheckpointView) -> None:
        await self.rt.db(self.rt.store.checkpoints.add_copy, checkpoint.checkpoint_id, None)
        await in_thread(remove_copy, self.rt.settings.checkpoint_dir, checkpoint, self.view.experiment_id)

    def kept(self, checkpoints: list[CheckpointView]) -> list[CheckpointView]:
        """Return the checkpoints that the policy keeps while the trial runs, latest first, at most ``trial_copies``."""
        return sorted(self._wanted(checkpoints), key=age_of, reverse=True)[: self.rt.settings.trial_copies]

    def _wanted(self, checkpoints: list[CheckpointView]) -> list[CheckpointView]:
        if self.policy == "all":
            return list(checkpoints)
        if self.policy == "none":
            return []
        dropped = {one.checkpoint_id for one in unkept([as_saved(c, self.metric) for c in checkpoints], self.numbers)}
        return [one for one in checkpoints if one.checkpoint_id not in dropped]

    async def _copy(self, checkpoint: CheckpointView) -> None:
        """Copy a checkpoint.

        :raises TrialFullError: the trial's copy limit leaves too little room for it
        """
        target = self._target(checkpoint)
        settings = self.rt.settings
        taken = await in_thread(tree_bytes, target.parent)
        limit = min(settings.checkpoint_copy_limit_bytes, settings.trial_copy_limit_bytes - taken)
        try:
            if (checkpoint.size_bytes or 0) > limit:
                raise ArchiveLimitError(f"it was reported with {checkpoint.size_bytes} bytes")
            link = await self.rt.link(checkpoint.host)
            size = await in_copy_thread(fetch_copy, link, checkpoint, target, limit_bytes=limit)
        except HostRefusedError:
            # The library removes checkpoints that the policy does not keep, even while they are being fetched.
            self.rt.log.debug("Checkpoint of step %d was replaced by a newer one before it was copied", checkpoint.step)
            return
        except ArchiveLimitError as error:
            is_full = limit < settings.checkpoint_copy_limit_bytes and (checkpoint.size_bytes or 0) <= limit + taken
            if is_full:
                raise TrialFullError(str(error)) from error
            self._warn_too_large(checkpoint, error)
            return
        except (*NOT_COPIED, UntrustedPathError) as error:
            self.rt.log.warning("Checkpoint of step %d was not copied: %s", checkpoint.step, error)
            return
        await self.rt.db(self.rt.store.checkpoints.add_copy, checkpoint.checkpoint_id, str(target), size_bytes=size)

    def _warn_too_large(self, checkpoint: CheckpointView, error: Exception) -> None:
        if checkpoint.checkpoint_id in self._reported_too_large:
            return
        self._reported_too_large.add(checkpoint.checkpoint_id)
        self.rt.log.warning(
            "Checkpoint of step %d stays only on host '%s': %s. checkpoint_copy_limit is %d, trial_copy_limit %d. "
            "Set checkpoint_storage to shared storage, or raise the limits.",
            checkpoint.step,
            checkpoint.host,
            error,
            self.rt.settings.checkpoint_copy_limit_bytes,
            self.rt.settings.trial_copy_limit_bytes,
        )

    def _target(self, checkpoint: CheckpointView) -> Path:
        return copy_path(self.rt.settings.checkpoint_dir, self.view.experiment_id, checkpoint)


class TrialFullError(Exception):
    """The copies of a trial leave too little room for another one."""


def numbers_of(config: ExperimentConfig) -> KeptCheckpoints:
    """Return how many checkpoints a configuration keeps in the end."""
    storage = config.checkpoint_storage
    return KeptCheckpoints(
        experiment_best=storage.save_experiment_best,
        trial_best=storage.save_trial_best,
        trial_latest=storage.save_trial_latest,
        smaller_is_better=config.searcher.smaller_is_better,
    )


def while_running(kept: KeptCheckpoints) -> KeptCheckpoints:
    """Return the numbers for one trial that still runs.

    The best of the experiment are among the best of their trials; a restart needs the latest.
    """
    return KeptCheckpoints(
        trial_best=max(kept.trial_best, kept.experiment_best),
        trial_latest=max(1, kept.trial_latest),
        smaller_is_better=kept.smaller_is_better,
    )


def as_saved(checkpoint: CheckpointView, metric: str | None) -> Saved:
    """Return the values that decide whether a checkpoint is kept."""
    value = checkpoint.metrics.get(metric) if metric else None
    return Saved(
        checkpoint_id=checkpoint.checkpoint_id,
        trial_id=checkpoint.trial_id,
        attempt=checkpoint.attempt,
        step=checkpoint.step,
        metric=float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None,
    )


def is_in_run_folder(checkpoint: CheckpointView) -> bool:
    """Return whether a checkpoint lies only in the folder of its run, on one host."""
    return checkpoint.place is not None and checkpoint.place.kind is StorageKind.RUN


def trusted(checkpoint: CheckpointView) -> CheckpointPlace:
    """Return the place of a checkpoint, derived from its trial's configuration.

    :raises UntrustedPathError: the reported path is none of the trial's places
    """
    if checkpoint.place is None:
        raise UntrustedPathError(f"the checkpoint of step {checkpoint.step} was refused: {checkpoint.refused}")
    return checkpoint.place


def experiment_folder(checkpoint_dir: Path, experiment_id: int) -> Path:
    """Return the folder of this machine that holds the copies of an experiment's files."""
    return checkpoint_dir / f"experiment-{experiment_id}"


def trial_folder(checkpoint_dir: Path, experiment_id: int, trial_id: int) -> Path:
    """Return the folder of this machine that holds the copies of one trial's files."""
    return experiment_folder(checkpoint_dir, experiment_id) / f"trial-{trial_id}"


def copy_path(checkpoint_dir: Path, experiment_id: int, checkpoint: CheckpointView) -> Path:
    """Return the path of a checkpoint's copy on this machine."""
    folder = trial_folder(checkpoint_dir, experiment_id, checkpoint.trial_id)
    return folder / f"{checkpoint.run}-step{checkpoint.step}"


def remove_copy(checkpoint_dir: Path, checkpoint: CheckpointView, experiment_id: int) -> None:
    """Remove a checkpoint's copy, but only from the path that this provider gives it. Blocks."""
    path = copy_path(checkpoint_dir, experiment_id, checkpoint)
    if checkpoint.copy_url == str(path):
        shutil.rmtree(path, ignore_errors=True)


def fetch_copy(link: HostLink, checkpoint: CheckpointView, target: Path, *, limit_bytes: int) -> int:
    """Copy a checkpoint from its host. The copy gets its name once it is complete. Blocks.

    :param limit_bytes: most bytes that its files may have together, counted while they arrive
    :return: bytes of its files
    :raises ArchiveLimitError: it is larger
    :raises DamagedCopyError: the archive is damaged, or a file differs from its metadata or from the store's record
    :raises UntrustedPathError: the checkpoint is at none of its trial's places
    """
    transfer = link.fetching(checkpoint.run, trusted(checkpoint).path)
    with fetched(target.parent, transfer, limit_bytes=limit_bytes, limit_files=FILES_LIMIT) as folder:
        entries = list(folder.iterdir())
        source = entries[0] if len(entries) == 1 and entries[0].is_dir() else folder
        verify_copy(source, checkpoint)
        size_bytes = tree_bytes(source)
        shutil.rmtree(target, ignore_errors=True)
        put_in_place(source, target)
    return size_bytes


def verify_copy(folder: Path, checkpoint: CheckpointView) -> None:
    """Check metadata and files of a copy against their sha256.

    A checkpoint that a program wrote without the library has neither, and is accepted as it is.

    :raises DamagedCopyError: metadata or files differ
    """
    from airflow_provider_dtrain.train.checkpoint.description import METADATA, METADATA_LIMIT_BYTES
    from airflow_provider_dtrain.train.checkpoint.disk import whole
    from airflow_provider_dtrain.train.errors import CheckpointError

    if checkpoint.sha256 is None and not (folder / METADATA).exists():
        return
    try:
        with open(folder / METADATA, "rb") as file:
            # The library parses it without limits for its values. Metadata of more bytes is refused by both.
            check_size(file.read(METADATA_LIMIT_BYTES), depth=_METADATA_DEPTH, values=_METADATA_VALUES)
        found = whole(folder)
    except (OSError, UntrustedInputError) as error:
        raise DamagedCopyError(f"{METADATA} cannot be read: {error}") from error
    except CheckpointError as error:
        raise DamagedCopyError(str(error)) from error
    if checkpoint.sha256 is not None and found.sha256 != checkpoint.sha256:
        raise DamagedCopyError(f"{METADATA} differs from the one that the event of step {checkpoint.step} reported")


def send(link: HostLink, run: str, relpath: str, folder: Path, name: str) -> None:
    """Send a folder of this machine to a path in a run's folder, under a name. Blocks."""
    with link.putting(run, relpath) as outgoing:
        pack_tree(folder, cast("IO[bytes]", outgoing), name)
