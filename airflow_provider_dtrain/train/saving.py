"""Saving and restoring a trial: the running program on one side, a folder of checkpoints on the other."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train import checkpoint as disk
from airflow_provider_dtrain.train import seeding
from airflow_provider_dtrain.train.data import Progress
from airflow_provider_dtrain.train.distributed import Distributed, load_bytes
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.events import EventWriter
from airflow_provider_dtrain.train.state import Prepared

log = logging.getLogger(__name__)


class Saver:
    """Writes and reads the checkpoints of one trial.

    Rank 0 writes; what only another rank knows (its random numbers) is sent to it. On restore the other ranks get
    the files from rank 0, so a checkpoint needs to be on one host only.

    :param folder: where checkpoints go
    :param look: whether ``restore`` may look there; False for a folder of this run alone
    """

    def __init__(
        self, env: Environment, distributed: Distributed, writer: EventWriter, prepared: Prepared, progress: Progress,
        *, folder: Path, look: bool, seed: int,
    ) -> None:  # fmt: skip
        self._env, self._distributed, self._writer = env, distributed, writer
        self._prepared, self._progress, self._seed = prepared, progress, seed
        self.folder, self._look = folder, look
        self.policy = _policy(env.config)
        #: The newest checkpoint that this process wrote or restored; rank 0 only.
        self.latest: disk.Checkpoint | None = None

    def save(self, step: int, counters: Mapping[str, int], facts: Mapping[str, Any]) -> Path | None:
        """Write a checkpoint; return its folder on rank 0, None elsewhere. Called by all ranks.

        :param counters: numbers of the training loop that a resumed run needs
        :param facts: JSON for the metadata
        """
        if self.policy["keep"] == "none":
            return None
        rng = self._distributed.gather(seeding.capture())
        if rng is None:
            return None
        state = {**self._prepared.state(), "progress": self._progress.state(), "counters": dict(counters)}
        contents = {disk.STATE: state, disk.RNG: rng}
        self.latest = disk.write(self.folder, step, contents, {**self._facts(), **facts})
        removed = disk.prune(self.folder, self.policy) if self.policy["keep"] == "best" else []
        self._writer.write(
            "checkpoint",
            {
                "step": step,
                "path": self._shown(self.latest.path),
                "size_bytes": self.latest.size_bytes,
                "sha256": self.latest.sha256,
                "metrics": dict(self.latest.metrics),
                "removed": [self._shown(path) for path in removed],
            },
            sync=True,
        )
        return self.latest.path

    def finish(self) -> None:
        """Return when every checkpoint is on the disk."""

    def restore(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Load the newest whole checkpoint; return its metadata and counters, both empty when there is none.

        Called by all ranks, after everything was prepared.
        """
        found = self._find() if self._distributed.get_rank() == 0 else None
        metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
        if metadata is None:
            return {}, {}
        state, rng = (self._everywhere(found, name) for name in (disk.STATE, disk.RNG))
        self._prepared.load(state)
        self._progress.load(state["progress"])
        self._restore_rng(rng, metadata["step"])
        self.latest = found
        if found:
            log.info("Restored the checkpoint of step %d from %s.", found.step, found.path)
        return metadata, state["counters"]

    def shown_latest(self) -> str | None:
        """Return the path of the newest checkpoint as events show it."""
        return self._shown(self.latest.path) if self.latest else None

    def _find(self) -> disk.Checkpoint | None:
        return disk.find_whole([self.folder] if self._look else [], self._env.latest_checkpoint)

    def _everywhere(self, found: disk.Checkpoint | None, name: str) -> Any:
        content = (found.path / name).read_bytes() if found else None
        return load_bytes(self._distributed.broadcast_bytes(content))

    def _restore_rng(self, states: list[Any], step: int) -> None:
        rank, size = self._distributed.get_rank(), self._distributed.get_size()
        if len(states) == size:
            seeding.apply(states[rank])
            return
        if rank == 0:
            log.info("The checkpoint has random states of %d ranks, now there are %d: streams are drawn anew from the "
                     "seed, the rank and the step.", len(states), size)  # fmt: skip
        seeding.seed_everything(seeding.derive(self._seed, "resumed", rank, step))

    def _facts(self) -> dict[str, Any]:
        import torch

        return {
            "run": self._env.run,
            "trial_id": self._env.trial_id,
            "attempt": self._env.attempt,
            "world_size": self._distributed.get_size(),
            "torch": torch.__version__,
            "written_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        }

    def _shown(self, path: Path) -> str:
        """Return the path relative to the run folder if it is below, else absolute."""
        root = self._env.run_dir
        return str(path.relative_to(root)) if root is not None and root in path.parents else str(path)


def _policy(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to keep: ``keep`` is best, all or none; numbers and metric as the configuration says."""
    storage, searcher = config.get("checkpoint_storage") or {}, config.get("searcher") or {}
    # An experiment's best are among its trials' best; the control side knows which.
    best = max(storage.get("save_trial_best", 1), storage.get("save_experiment_best", 0))
    return {
        "keep": config.get("checkpoint_policy") or "best",
        "metric": searcher.get("metric"),
        "smaller_is_better": searcher.get("smaller_is_better", True),
        "save_trial_best": best,
        "save_trial_latest": storage.get("save_trial_latest", 1),
    }
