"""Restore of a trial: the newest intact checkpoint, loaded into the running program by all ranks."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import (
    description,
    disk,
    found_checkpoints,
    rank_states,
    reading,
    storage,
    warm_start,
)
from airflow_provider_dtrain.train.checkpoint.description import SavedCheckpoint
from airflow_provider_dtrain.train.checkpoint.state_values import decode
from airflow_provider_dtrain.train.checkpoint.targets import Targets
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.checkpoint.trial_storage import TrialStorage
from airflow_provider_dtrain.train.data.position import Progress, describe
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.process.heartbeat import CHECKPOINT, HERE
from airflow_provider_dtrain.train.process.streams import Streams
from airflow_provider_dtrain.train.values import StateDict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedProgress:
    """Progress of training at a checkpoint."""

    step: int
    #: Number of trained epochs, with a fraction; None where the program has not reported it.
    epochs: float | None
    #: Validation metrics at this step, empty if there are none.
    metrics: Mapping[str, Any]


class Restorer:
    """Reads the checkpoints of one trial.

    Ranks that do not see the folder of a checkpoint get everything from rank 0, so a checkpoint needs to be on one host
    only.
    """

    def __init__(
        self,
        home: TrialStorage,
        env: RankEnvironment,
        distributed: Distributed,
        prepared: Prepared,
        progress: Progress,
        gradients: Gradients,
        streams: Streams,
    ) -> None:
        self._home = home
        self._env = env
        self._distributed = distributed
        self._prepared = prepared
        self._progress = progress
        self._gradients = gradients
        self._streams = streams
        #: Path or URL of the latest checkpoint that the control side or the program knows.
        self.first: Path | str | None = env.latest_checkpoint

    def restore(self, *, start_over: bool = False) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Load the newest intact checkpoint. Return its metadata and counters, both empty without one.

        Without a checkpoint, the weights of the source checkpoint are loaded, if the configuration names one. Called by
        all ranks, after everything is prepared.

        :param start_over: return nothing when every checkpoint is damaged
        :raises DamagedCheckpointError: every checkpoint is damaged
        """
        with HERE.at(CHECKPOINT), self._scratch() as scratch:
            found = self._find(scratch, start_over=start_over) if self._distributed.get_rank() == 0 else None
            metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
            if metadata is None:
                self._warm_start(scratch)
                return {}, {}
            if metadata.get("kind") == description.FILES:
                raise CheckpointError(
                    f"The checkpoint of step {metadata['step']} was written by ctx.checkpoint. Read its files in "
                    "ctx.latest_checkpoint(), or start without it."
                )
            skeleton, source = self._open(found, metadata)
            rng = self._everywhere(found, disk.RNG)
            pending = self._everywhere(found, disk.PENDING) if disk.PENDING in metadata["files"] else None
            apart = decode(self._everywhere(found, disk.FURTHER)) if disk.FURTHER in metadata["files"] else None
            state = self._loaded(skeleton, source, f"step {metadata['step']}")
        if apart is not None:
            state["others"] = rank_states.of_rank(state["others"], apart, self._prepared.further, self._distributed)
        self._prepared.load(state)
        position = state["progress"]
        random_states = self._own_random_states(rng)
        self._progress.load(position, metadata["step"], random_states["before"] if random_states else None)
        if state.get("gradients") is not None:
            self._gradients.load_state_dict(state["gradients"])
        if pending is not None:
            self._gradients.load_rank_states(pending, state["sharded_gradients"])
        # A loop of the program's own over its own data may draw it before anything else happens.
        self._streams.resume(random_states, metadata["step"], at_once=not position["has_loops"])
        self._home.latest = found
        if found:
            where = f" Training continues {describe(position)}" if position["has_loops"] else ""
            log.info("Restored the checkpoint of step %d from %s.%s", found.step, found.where, where)
        return metadata, state["counters"]

    def progress(self, *, start_over: bool = False) -> SavedProgress | None:
        """Return the progress of the checkpoint that :meth:`restore` would load, None without one.

        Called by all ranks. Reads the whole checkpoint, because a damaged one would be skipped.
        """
        with HERE.at(CHECKPOINT), self._scratch() as scratch:
            found = self._find(scratch, start_over=start_over) if self._distributed.get_rank() == 0 else None
            metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
        if metadata is None:
            return None
        return SavedProgress(metadata["step"], metadata.get("epochs"), metadata.get("metrics") or {})

    def _find(self, scratch: Path, *, start_over: bool = False) -> SavedCheckpoint | None:
        found = storage.candidates(self._home.storage, self.first, self._home.config)
        newest = found_checkpoints.newest(found, scratch)
        if newest is None and found:
            if not (start_over or self._env.start_over):
                raise DamagedCheckpointError(
                    f"None of {len(found)} checkpoints is intact, the newest is {max(found)[1]}: training would start "
                    "from step 0. To start over, delete them, pass start_over=True to ctx.restore_checkpoint "
                    "or ctx.latest_checkpoint, or set DTRAIN_START_OVER=1 in environment.variables."
                )
            log.warning("None of %d checkpoints is intact: training starts from step 0.", len(found))
        return newest

    def find_files(self, scratch: Path, *, start_over: bool = False) -> tuple[SavedCheckpoint | None, bool]:
        """Return the newest intact checkpoint, and whether it is the source checkpoint. Called by rank 0.

        :param scratch: folder for copies
        :param start_over: find nothing when every checkpoint is damaged
        :raises CheckpointError: it was not written by ``ctx.checkpoint``, or the source checkpoint is damaged
        """
        found = self._find(scratch, start_over=start_over)
        source = self._env.source_checkpoint
        is_source = found is None and source is not None
        if found is None and source is not None:
            found = self._read_source(source, scratch)
        if found is not None:
            _refuse_prepared(found)
        if found is not None and not is_source:
            self._home.latest = found
        return found, is_source

    def read_files(self, where: str, scratch: Path) -> SavedCheckpoint:
        """Return the checkpoint of files at a path or URL, after a check of its files.

        :param scratch: folder for copies
        :raises DamagedCheckpointError: it is damaged, or this host has none there
        :raises CheckpointError: it was not written by ``ctx.checkpoint``
        """
        found = storage.reader(where, self._home.config)(scratch)
        _refuse_prepared(found)
        if self._home.latest is None and where == str(self._env.latest_checkpoint):
            self._home.latest = found
        return found

    def _read_source(self, source: Path | str, scratch: Path) -> SavedCheckpoint:
        try:
            return storage.reader(source, self._home.config)(scratch)
        except DamagedCheckpointError as error:
            raise CheckpointError(
                f"The source checkpoint {source} is damaged ({error}). Set searcher.source_checkpoint to another one."
            ) from error

    def _warm_start(self, scratch: Path) -> None:
        source = self._env.source_checkpoint
        if source is None:
            return
        found = None
        if self._distributed.get_rank() == 0:
            found = self._read_source(source, scratch)
            description.refuse_files(found)
        metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
        opened = self._open(found, metadata)
        warm_start.load_weights(self._prepared.models, *opened, str(source))
        if found:
            log.info("Started from the weights of %s (step %d); all other state is new.", source, found.step)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Yield a temporary folder for copies of checkpoints from elsewhere, which is removed at the end.

        Called by all ranks. Those of one host read the files in the folder of rank 0.
        """
        root = self._env.run_dir
        folder = Path(tempfile.mkdtemp(prefix="dtrain-restore-", dir=str(root) if root is not None else None))
        try:
            yield folder
            self._distributed.barrier()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _everywhere(self, found: SavedCheckpoint | None, name: str) -> Any:
        return reading.everywhere(found, name, self._distributed)

    def _open(self, found: SavedCheckpoint | None, metadata: Mapping[str, Any]) -> tuple[Any, TensorSource]:
        """Return the state without its tensors, and the source of these. Called by all ranks."""
        return reading.open_state(found, metadata, self._distributed)

    def _loaded(self, skeleton: Mapping[str, Any], source: TensorSource, name: str) -> StateDict:
        """Return the state with its tensors, most of which are those of the prepared objects themselves.

        :param name: the checkpoint, for messages
        """
        prepared = self._prepared
        saved = skeleton.get("models", []), skeleton.get("optimizers", [])
        warm_start.refuse_other_models(prepared.models, saved[0], source, name)
        warm_start.refuse_other_optimizers(prepared.optimizers, saved[1], name)
        if not prepared.has_load_callback:
            prepared.refuse_other_numbers(skeleton)
            warm_start.refuse_other_groups(prepared.optimizers, saved[1], name)
        targets = Targets(source, in_place=not prepared.has_load_callback)
        other_states = skeleton.get("others", [])
        mine = prepared.further_as_saved(skeleton.get("names") or {}, len(other_states))
        state = {
            "models": targets.models(prepared.models, saved[0]),
            "optimizers": targets.optimizers(prepared.optimizers, saved[1]),
            "others": targets.further(mine, other_states),
            "sharded_gradients": targets.gradients(
                self._gradients.parameters(), skeleton.get("sharded_gradients") or []
            ),
        }
        rest = {name: value for name, value in skeleton.items() if name not in state}
        state.update(targets.plain(rest))
        source.load(targets.wanted)
        loaded: StateDict = decode(state)
        return loaded

    def _own_random_states(self, states: list[Any]) -> Mapping[str, Any] | None:
        """Return this rank's random states, None if another number of ranks has saved theirs."""
        size = self._distributed.get_size()
        rank = self._distributed.get_rank()
        if len(states) == size:
            return states[rank]  # type: ignore[no-any-return]
        if rank == 0:
            log.info(
                "The checkpoint has random states of %d ranks, and this run has %d: random streams are derived "
                "anew from the seed, the rank and the step.",
                len(states),
                size,
            )
        return None


def _refuse_prepared(found: SavedCheckpoint) -> None:
    if not found.is_of_files:
        raise CheckpointError(
            f"The checkpoint {found.where} was written by ctx.save_checkpoint. Load it with "
            "ctx.restore_checkpoint(), or start without it."
        )
