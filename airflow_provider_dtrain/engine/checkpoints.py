"""Copies of checkpoints on the control side, so that a lost host loses nothing that was kept."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import HostError, HostRefusedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.runtime import Runtime
    from airflow_provider_dtrain.store.records import AttemptView, CheckpointView


class CheckpointCopier:
    """Copies what the policy keeps while the trial runs; one copy at a time, newest state first.

    :param metric: searcher metric that ranks checkpoints; None = the latest is the best
    """

    def __init__(
        self, rt: Runtime, view: AttemptView, *, policy: str, metric: str | None, smaller_is_better: bool
    ) -> None:
        self.rt, self.view = rt, view
        self.policy, self.metric, self.smaller_is_better = policy, metric, smaller_is_better
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
            await self.copy_kept()
            if self._closing:
                return

    def close(self) -> None:
        """Let :meth:`run` end after a last look."""
        self._closing = True
        self._wake.set()

    async def copy_kept(self) -> None:
        """Copy every kept checkpoint that has no copy yet, and remove copies that are kept no more."""
        checkpoints = await self.rt.db(self.rt.store.checkpoints, self.view.trial_id)
        kept = self.kept(checkpoints)
        for checkpoint in kept:
            if checkpoint.copy_url is None and not os.path.isabs(checkpoint.path):
                await self._copy(checkpoint)
        for checkpoint in checkpoints:
            if checkpoint.copy_url is not None and checkpoint not in kept:
                await self.rt.db(self.rt.store.add_checkpoint_copy, checkpoint.checkpoint_id, None)
                await in_thread(shutil.rmtree, checkpoint.copy_url, ignore_errors=True)

    def kept(self, checkpoints: list[CheckpointView]) -> list[CheckpointView]:
        """Return the checkpoints that the policy keeps, best first."""
        if self.policy == "all" or not checkpoints:
            return list(checkpoints)
        if self.policy == "none":
            return []
        best, latest = best_checkpoint(checkpoints, self.metric, self.smaller_is_better), max(checkpoints, key=_age)
        return [best] if best == latest else [best, latest]

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
            content = await in_thread(link.fetch, checkpoint.run, checkpoint.path)
            await in_thread(unpack, content, target)
        except HostRefusedError:
            # The library removes what the policy does not keep, also while it is being fetched.
            self.rt.log.info("Checkpoint of step %d made room for a later one before it was copied", checkpoint.step)
            return
        except (HostError, OSError, tarfile.TarError) as error:
            self.rt.log.warning("Checkpoint %s was not copied: %s", checkpoint.path, error)
            return
        await self.rt.db(self.rt.store.add_checkpoint_copy, checkpoint.checkpoint_id, str(target))

    def _target(self, checkpoint: CheckpointView) -> Path:
        folder = self.rt.settings.checkpoint_dir / f"experiment-{self.view.experiment_id}"
        return folder / f"trial-{self.view.trial_id}" / f"{checkpoint.run}-step{checkpoint.step}"


def best_checkpoint(checkpoints: list[CheckpointView], metric: str | None, smaller_is_better: bool) -> CheckpointView:
    """Return the checkpoint with the best metric; the latest one when none has it.

    :param checkpoints: at least one
    """
    values = [(c.metrics.get(metric), c) for c in checkpoints] if metric else []
    ranked = [(value, c) for value, c in values if isinstance(value, int | float) and value == value]
    if not ranked:
        return max(checkpoints, key=_age)
    sign = 1 if smaller_is_better else -1
    return min(ranked, key=lambda pair: (sign * pair[0], -pair[1].step))[1]


def _age(checkpoint: CheckpointView) -> tuple[int, int]:
    return checkpoint.attempt, checkpoint.step


def unpack(content: bytes, target: Path) -> None:
    """Unpack a tar with one folder to ``target``, which appears whole or not at all.

    :raises tarfile.TarError: the archive is damaged or leads outside
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as temporary:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(temporary, filter="data")
        entries = list(Path(temporary).iterdir())
        source = entries[0] if len(entries) == 1 and entries[0].is_dir() else Path(temporary)
        shutil.rmtree(target, ignore_errors=True)
        moved = target.with_name(target.name + ".new")
        shutil.rmtree(moved, ignore_errors=True)
        shutil.copytree(source, moved)
        os.replace(moved, target)


def pack(folder: Path, name: str) -> bytes:
    """Return a tar that holds the folder under ``name``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=name)
    return buffer.getvalue()


def as_result(checkpoint: CheckpointView | None) -> dict[str, Any] | None:
    """Return the checkpoint as the operator's XCom shows it."""
    if checkpoint is None:
        return None
    return {
        "path": checkpoint.copy_url or checkpoint.path,
        "step": checkpoint.step,
        "host": None if checkpoint.copy_url else checkpoint.host,
        "sha256": checkpoint.sha256,
    }
