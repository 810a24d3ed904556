"""Save and restore a trial: the running program on one side, a storage of checkpoints on the other."""

from __future__ import annotations

import contextlib
import datetime
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import disk, rank_states, reading, save_plan, storage, warm_start
from airflow_provider_dtrain.train.checkpoint.async_writer import Background
from airflow_provider_dtrain.train.checkpoint.folder_lock import FolderLock
from airflow_provider_dtrain.train.checkpoint.rank_files import RankFiles
from airflow_provider_dtrain.train.checkpoint.save_plan import SavePlan
from airflow_provider_dtrain.train.checkpoint.snapshot import Snapshots
from airflow_provider_dtrain.train.checkpoint.state_values import decode, encode
from airflow_provider_dtrain.train.checkpoint.targets import Targets
from airflow_provider_dtrain.train.checkpoint.tensor_file import TensorFile
from airflow_provider_dtrain.train.checkpoint.tensor_index import INDEX
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.checkpoint.tensor_tree import holds_sharded, split
from airflow_provider_dtrain.train.checkpoint.unsaveable import located
from airflow_provider_dtrain.train.checkpoint.unsaved_parameters import warn_of_unsaved
from airflow_provider_dtrain.train.data.loader import Progress
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError, DamagedCheckpointError
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.process import seeding
from airflow_provider_dtrain.train.process.heartbeat import CHECKPOINT, HERE
from airflow_provider_dtrain.train.reports.events import EventWriter

log = logging.getLogger(__name__)

#: Pauses before further tries of a save that the storage rejects, seconds. Training continues meanwhile.
RETRY_AFTER_S = (1.0, 5.0)
#: Name of a rank's tensors in a snapshot. No file has it.
_TENSORS = "tensors"


class Saver:
    """Writes and reads the checkpoints of one trial.

    Rank 0 writes. Small data that only another rank has (random states, gradients of an unfinished group, states of
    prepared objects that differ between the ranks) is sent to it. Each rank writes its parts of sharded tensors itself
    if it sees rank 0's folder, and sends them otherwise. On restore, ranks that do not see the folder get everything
    from rank 0, so a checkpoint needs to be on one host only.

    :param where: folder or URL for checkpoints
    :param look: True: ``restore`` may read it; False: it is a folder of this run alone
    """

    def __init__(
        self,
        env: Environment,
        distributed: Distributed,
        writer: EventWriter,
        prepared: Prepared,
        progress: Progress,
        gradients: Gradients,
        *,
        where: Path | str,
        look: bool,
        seed: int,
    ) -> None:
        self._env = env
        self._distributed = distributed
        self._writer = writer
        self._prepared = prepared
        self._progress = progress
        self._gradients = gradients
        self._seed = seed
        self._storage_config = env.config.get("checkpoint_storage") or {}
        self.policy = _policy(env.config)
        self._snapshots = Snapshots()
        self._background = Background()
        self._rank_files = RankFiles(distributed, self._storage_config)
        self._swept = False
        #: The ranks have compared the form of their models.
        self._compared = False
        self._warned = False
        #: Rank 0 alone reads and writes.
        self._storage: storage.Storage | None = None
        self._lock: FolderLock | None = None
        if distributed.get_rank() == 0 and self.policy["keep"] != "none":
            self._storage = storage.open_storage(where, self._storage_config, look=look)
            self._lock = FolderLock(self._storage.lock_place(), env)
        #: The newest checkpoint that this process wrote or restored; rank 0 only.
        self.latest: disk.Checkpoint | None = None

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(self, step: int, counters: Mapping[str, int], facts: Mapping[str, Any]) -> Path | str | None:
        """Copy the state and write it in the background. Return its path or URL on rank 0, None elsewhere.

        Waits for the previous save, so that memory holds at most one copy. Called by all ranks.

        :param counters: numbers of the training loop that a resumed run needs
        :param facts: JSON for the metadata
        :raises CheckpointError: the state cannot be saved, or another run writes to the same folder
        """
        if self.policy["keep"] == "none":
            return None
        with HERE.at(CHECKPOINT):
            return self._save(step, counters, facts)

    def _save(self, step: int, counters: Mapping[str, int], facts: Mapping[str, Any]) -> Path | str | None:
        self._finish_previous()
        self._claim()
        self._prepared.refuse_old_shards()
        self._refuse_other_forms()
        others = self._prepared.other_states()
        encoded = encode(others)
        self._warn_once(encoded)
        with located({"others": others}, self._prepared):
            apart = rank_states.gather(self._distributed, encoded)
        ranks = self._distributed.gather((seeding.capture(), self._gradients.rank_state()))
        is_sharded = self._distributed.any(self._prepared.is_sharded() or holds_sharded(encoded))
        if ranks is None and not is_sharded:
            return None
        original = self._state(others, counters, is_chief=ranks is not None)
        state = encode(original)
        skeleton, tensors = split(state)
        plan = save_plan.make(tensors, self._distributed, is_sharded=is_sharded)
        contents: dict[str, Any] = {disk.STATE: skeleton}
        if ranks is not None:
            contents[disk.RNG] = [rng for rng, _ in ranks]
            if any(pending for _, pending in ranks):
                contents[disk.PENDING] = [pending for _, pending in ranks]
            if apart is not None and any(apart):
                contents[disk.OTHERS] = apart
        # One walk over everything, so that each tensor is copied once.
        with located(original, self._prepared):
            taken = self._snapshots.take({**contents, _TENSORS: list(plan.tensors)})
        file = TensorFile([part.slot for part in plan.parts], taken.pop(_TENSORS))
        if ranks is None:
            self._deliver(file if plan.parts else None)
            return None
        described = {**self._facts(), **facts}
        if state is not original or encoded is not others:
            described["format"] = disk.VALUES_FORMAT
        return self._write_in_background(step, taken, file, plan, described, is_sharded=is_sharded)

    def _warn_once(self, others: list[Any]) -> None:
        """Name parameters that the checkpoints lack, at the first save."""
        if not self._warned and self._distributed.get_rank() == 0:
            self._warned = True
            warn_of_unsaved(self._prepared, others)

    def _refuse_other_forms(self) -> None:
        """Raise at the first save when the ranks have different models, because only those of rank 0 are saved."""
        if self._compared:
            return
        self._compared = True
        forms = self._distributed.allgather(self._prepared.form())
        other = next((rank for rank, form in enumerate(forms) if form != forms[0]), None)
        if other is not None:
            raise CheckpointError(
                f"ctx.save_checkpoint takes the same models on all ranks, but those of rank {other} have other names "
                "or shapes than those of rank 0, as with pipeline parallelism. Keep them out of ctx.prepare, and save "
                "the files of each rank with ctx.checkpoint(step)."
            )

    def _state(self, others: list[Any], counters: Mapping[str, int], *, is_chief: bool) -> dict[str, Any]:
        """Return the state to save. On other ranks than rank 0, only its sharded tensors count."""
        state = self._prepared.state(others) if is_chief else self._prepared.sharded_state(others)
        return {
            **state,
            "gradients": self._gradients.state_dict(),
            "sharded_gradients": self._gradients.sharded_gradients(),
            "progress": self._progress.state(),
            "counters": dict(counters),
        }

    def _deliver(self, file: TensorFile | None) -> None:
        """Write this rank's file in the background. Runs on other ranks than rank 0."""
        begun = self._rank_files.begin(None)
        if file is not None and begun is not None:
            self._background.start("dtrain-checkpoint", partial(self._rank_files.deliver, begun, file))

    def _write_in_background(
        self,
        step: int,
        contents: dict[str, Any],
        file: TensorFile,
        plan: SavePlan,
        facts: Mapping[str, Any],
        *,
        is_sharded: bool,
    ) -> Path | str:
        assert self._storage is not None
        assert plan.index is not None
        where = self._storage.reserve(step)
        if plan.index:
            contents[INDEX] = plan.index.text()
        if plan.parts:
            contents[save_plan.file_name(0)] = file
        others: dict[str, Any] = {}
        if is_sharded:
            others = self._begin(where, step, plan.ranks)
        write = partial(self._storage.write, where, step, contents, facts, **others)
        # The parts of other ranks are collected once.
        pauses_s = () if is_sharded else RETRY_AFTER_S
        self._background.start("dtrain-checkpoint", partial(self._write, self._storage, step, write, pauses_s))
        return where

    def _begin(self, where: Any, step: int, ranks: Sequence[int]) -> dict[str, Any]:
        """Return what the storage needs for the files of other ranks. Called by rank 0 while the others deliver.

        :param ranks: ranks with a file
        """
        assert self._storage is not None
        try:
            self._sweep(self._storage)
            place = self._storage.begin(where, step)
        except Exception as error:
            # The other ranks wait. The error is that of the save, which runs in the background.
            self._rank_files.begin(None)
            return {"more": partial(_fail, error)}
        begun = self._rank_files.begin(place)
        assert begun is not None
        return {"begun": place, "more": partial(self._rank_files.collect, begun, ranks)}

    def stage(self, step: int) -> Path | None:
        """Return a new folder for files on rank 0, None if checkpoints are switched off. Waits for the previous save.

        :raises CheckpointError: there are prepared objects, or another run writes to the same folder
        """
        if len(self._prepared):
            raise CheckpointError(
                "ctx.checkpoint saves the files of a program that saves its objects itself, but ctx.prepare or "
                "ctx.register was given objects. Save these with ctx.save_checkpoint(step)."
            )
        self._finish_previous()
        self._claim()
        if self._storage is None:
            return None
        self._sweep(self._storage)
        return self._storage.stage(step)

    def publish(self, step: int, folder: Path, facts: Mapping[str, Any]) -> None:
        """Make a subfolder of :meth:`stage` a checkpoint, in the background. Called by rank 0."""
        assert self._storage is not None
        where = self._storage.reserve(step)
        write = partial(self._storage.write_tree, where, step, folder, {**self._facts(), **facts})
        self._background.start("dtrain-checkpoint", partial(self._write, self._storage, step, write))

    def finish(self) -> None:
        """Wait until every checkpoint is on disk.

        :raises CheckpointError: the last one could not be written; older ones still exist
        """
        with HERE.at(CHECKPOINT):
            self._background.wait()

    def _finish_previous(self) -> None:
        """Wait for the previous save. If the storage rejected it, training continues, and this save is the next try."""
        try:
            self.finish()
        except CheckpointStorageError as error:
            log.error("%s. Training continues, and the save that begins now tries again.", str(error).rstrip("."))

    def _claim(self) -> None:
        """Become the only run that writes to the folder.

        :raises CheckpointError: another run writes to it
        """
        if self._lock is not None:
            # A folder that accepts no files is named when the checkpoint is written.
            with contextlib.suppress(OSError):
                self._lock.acquire()

    def release(self) -> None:
        """Let other runs write to the folder."""
        if self._lock is not None:
            self._lock.release()

    def settle(self) -> None:
        """Wait until no save is running. Log a failure instead of raising it."""
        try:
            self.finish()
        except Exception as error:
            log.error("%s", error)

    def _sweep(self, target: storage.Storage) -> None:
        """Remove the leftovers of killed processes, once."""
        if not self._swept:
            target.sweep()
            self._swept = True

    def _write(
        self,
        target: storage.Storage,
        step: int,
        write: Callable[[], disk.Checkpoint],
        pauses_s: Sequence[float] = (),
    ) -> None:
        """Write the checkpoint, prune, and write the event. Runs in the background.

        :param pauses_s: seconds before each further try when the storage rejects the checkpoint
        """
        if self._lock is not None:
            self._lock.check()
        self._sweep(target)
        written = _tried(write, pauses_s)
        self.latest = written
        removed = target.prune(self.policy) if self.policy["keep"] == "best" else []
        self._writer.write(
            "checkpoint",
            {
                "step": step,
                "path": self._shown(written.url or written.path),
                "size_bytes": written.size_bytes,
                "sha256": written.sha256,
                "metrics": dict(written.metrics),
                "removed": [self._shown(path) for path in removed],
            },
            sync=True,
        )

    # -- restoring -------------------------------------------------------------------------------------------------

    def restore(self, *, start_over: bool = False) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Load the newest intact checkpoint. Return its metadata and counters, both empty without one.

        Without a checkpoint, the weights of the source checkpoint are loaded, if the configuration names one. Called by
        all ranks, after everything is prepared.

        :param start_over: return nothing when every checkpoint is damaged
        :raises DamagedCheckpointError: every checkpoint is damaged
        """
        self.finish()
        self._claim()
        with HERE.at(CHECKPOINT), self._scratch() as scratch:
            found = self._find(scratch, start_over=start_over) if self._distributed.get_rank() == 0 else None
            metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
            if metadata is None:
                self._warm_start(scratch)
                return {}, {}
            if metadata.get("kind") == disk.FILES:
                raise CheckpointError(
                    f"The checkpoint of step {metadata['step']} was written by ctx.checkpoint. Read its files in "
                    "ctx.latest_checkpoint(), or start without it."
                )
            skeleton, source = self._open(found, metadata)
            rng = self._everywhere(found, disk.RNG)
            pending = self._everywhere(found, disk.PENDING) if disk.PENDING in metadata["files"] else None
            apart = decode(self._everywhere(found, disk.OTHERS)) if disk.OTHERS in metadata["files"] else None
            state = self._loaded(skeleton, source, f"step {metadata['step']}")
        if apart is not None:
            state["others"] = rank_states.of_rank(state["others"], apart, self._prepared.others, self._distributed)
        self._prepared.load(state)
        self._progress.load(state["progress"])
        if state.get("gradients") is not None:
            self._gradients.load_state_dict(state["gradients"])
        if pending is not None:
            self._gradients.load_rank_states(pending, state["sharded_gradients"])
        self._restore_rng(rng, metadata["step"])
        self.latest = found
        if found:
            log.info("Restored the checkpoint of step %d from %s.", found.step, found.where)
        return metadata, state["counters"]

    def shown_latest(self) -> str | None:
        """Return the path of the newest checkpoint as events show it, or None."""
        return self._shown(self.latest.url or self.latest.path) if self.latest else None

    def _find(self, scratch: Path, *, start_over: bool = False) -> disk.Checkpoint | None:
        first = self._env.latest_checkpoint
        if self._storage is not None:
            found = storage.candidates(self._storage, first, self._storage_config)
        elif first is not None:
            found = storage.elsewhere(first, self._storage_config)
        else:
            found = []
        newest = disk.newest([(key, name, partial(read, scratch)) for key, name, read in found])
        if newest is None and found:
            if not (start_over or self._env.start_over):
                raise DamagedCheckpointError(
                    f"None of {len(found)} checkpoints is intact, the newest is {max(found)[1]}: training would start "
                    "from step 0. To start over, delete them, pass start_over=True to ctx.restore_checkpoint "
                    "or ctx.latest_checkpoint, or set DTRAIN_START_OVER=1 in environment.variables."
                )
            log.warning("None of %d checkpoints is intact: training starts from step 0.", len(found))
        return newest

    def find_files(self, scratch: Path, *, start_over: bool = False) -> tuple[disk.Checkpoint | None, bool]:
        """Return the newest intact checkpoint, and whether it is the source checkpoint. Called by rank 0.

        :param scratch: folder for copies
        :param start_over: find nothing when every checkpoint is damaged
        :raises CheckpointError: it was not written by ``ctx.checkpoint``, or the source checkpoint is damaged
        """
        self.finish()
        found = self._find(scratch, start_over=start_over)
        source = self._env.source_checkpoint
        is_source = found is None and source is not None
        if found is None and source is not None:
            found = self._read_source(source, scratch)
        if found is not None and not found.is_of_files:
            raise CheckpointError(
                f"The checkpoint {found.where} was written by ctx.save_checkpoint. Load it with "
                "ctx.restore_checkpoint(), or start without it."
            )
        if found is not None and not is_source:
            self.latest = found
        return found, is_source

    def _read_source(self, source: Path | str, scratch: Path) -> disk.Checkpoint:
        try:
            return storage.reader(source, self._storage_config)(scratch)
        except disk.DamagedCheckpointError as error:
            raise CheckpointError(
                f"The source checkpoint {source} is damaged ({error}). Set searcher.source_checkpoint to another one."
            ) from error

    def _warm_start(self, scratch: Path) -> None:
        """Load the weights of the source checkpoint, if the configuration names one."""
        source = self._env.source_checkpoint
        if source is None:
            return
        found = None
        if self._distributed.get_rank() == 0:
            found = self._read_source(source, scratch)
            disk.refuse_files(found)
        metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
        opened = self._open(found, metadata)
        warm_start.load_weights(self._prepared.models, *opened, str(source))
        if found:
            log.info("Started from the weights of %s (step %d); all other state is new.", source, found.step)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Yield a temporary folder for copies of checkpoints from elsewhere. It is removed at the end."""
        root = self._env.run_dir
        folder = Path(tempfile.mkdtemp(prefix="dtrain-restore-", dir=str(root) if root is not None else None))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _everywhere(self, found: disk.Checkpoint | None, name: str) -> Any:
        return reading.everywhere(found, name, self._distributed)

    def _open(self, found: disk.Checkpoint | None, metadata: Mapping[str, Any]) -> tuple[Any, TensorSource]:
        """Return the state without its tensors, and the source of these. Called by all ranks."""
        return reading.open_state(found, metadata, self._distributed)

    def _loaded(self, skeleton: Mapping[str, Any], source: TensorSource, name: str) -> dict[str, Any]:
        """Return the state with its tensors, most of which are those of the prepared objects themselves.

        :param name: the checkpoint, for messages
        """
        prepared = self._prepared
        saved = skeleton.get("models", []), skeleton.get("optimizers", [])
        warm_start.refuse_other_models(prepared.models, saved[0], source, name)
        warm_start.refuse_other_optimizers(prepared.optimizers, saved[1], name)
        if not prepared.has_load_callback:
            prepared.refuse_other_numbers(skeleton)
        targets = Targets(source, in_place=not prepared.has_load_callback)
        others = skeleton.get("others", [])
        mine = prepared.others_as_saved(skeleton.get("names") or {}, len(others))
        state = {
            "models": targets.models(prepared.models, saved[0]),
            "optimizers": targets.optimizers(prepared.optimizers, saved[1]),
            "others": targets.others(mine, others),
            "sharded_gradients": targets.gradients(
                self._gradients.parameters(), skeleton.get("sharded_gradients") or []
            ),
        }
        rest = {name: value for name, value in skeleton.items() if name not in state}
        state.update(targets.plain(rest))
        source.load(targets.wanted)
        loaded: dict[str, Any] = decode(state)
        return loaded

    def _restore_rng(self, states: list[Any], step: int) -> None:
        rank = self._distributed.get_rank()
        size = self._distributed.get_size()
        if len(states) == size:
            seeding.apply(states[rank])
            return
        if rank == 0:
            log.info(
                "The checkpoint has random states of %d ranks, and this run has %d: random streams are derived "
                "anew from the seed, the rank and the step.",
                len(states),
                size,
            )
        seeding.seed_everything(seeding.derive(self._seed, "resumed", rank, step))

    def _facts(self) -> dict[str, Any]:
        torch = sys.modules.get("torch")
        return {
            "run": self._env.run,
            "trial_id": self._env.trial_id,
            "attempt": self._env.attempt,
            "world_size": self._distributed.get_size(),
            "torch": str(torch.__version__) if torch is not None else None,
            "written_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        }

    def _shown(self, where: Path | str) -> str:
        """Return a path relative to the run folder if it is inside it, else unchanged."""
        root = self._env.run_dir
        if isinstance(where, Path) and root is not None and root in where.parents:
            return str(where.relative_to(root))
        return str(where)


def _fail(error: Exception) -> dict[str, Any]:
    raise error


def _tried(write: Callable[[], disk.Checkpoint], pauses_s: Sequence[float]) -> disk.Checkpoint:
    """Return the written checkpoint, after further tries if the storage rejects it."""
    for pause_s in pauses_s:
        try:
            return write()
        except CheckpointStorageError as error:
            log.warning("%s. The next try is in %g s.", str(error).rstrip("."), pause_s)
            time.sleep(pause_s)
    return write()


def _policy(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to keep while the trial runs: ``keep`` (best, all or none), and the configured numbers and metric.

    It keeps more than the end result needs: an experiment's best are among its trials' best, and a restart needs the
    latest.
    """
    stored = config.get("checkpoint_storage") or {}
    searcher = config.get("searcher") or {}
    best = max(stored.get("save_trial_best", 1), stored.get("save_experiment_best", 0))
    return {
        "keep": config.get("checkpoint_policy") or "best",
        "metric": searcher.get("metric"),
        "smaller_is_better": searcher.get("smaller_is_better", True),
        "save_trial_best": best,
        "save_trial_latest": max(1, stored.get("save_trial_latest", 1)),
    }
