"""Save and restore a trial: the running program on one side, a storage of checkpoints on the other."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_dtrain.train.checkpoint import (
    disk,
    rank_states,
    save_plan,
    storage,
)
from airflow_provider_dtrain.train.checkpoint.async_writer import Background
from airflow_provider_dtrain.train.checkpoint.description import SavedCheckpoint
from airflow_provider_dtrain.train.checkpoint.rank_files import RankFiles
from airflow_provider_dtrain.train.checkpoint.restorer import Restorer
from airflow_provider_dtrain.train.checkpoint.save_plan import SavePlan
from airflow_provider_dtrain.train.checkpoint.snapshot import Snapshots
from airflow_provider_dtrain.train.checkpoint.state_values import encode
from airflow_provider_dtrain.train.checkpoint.tensor_file import TensorFile
from airflow_provider_dtrain.train.checkpoint.tensor_index import INDEX
from airflow_provider_dtrain.train.checkpoint.tensor_tree import holds_sharded, split
from airflow_provider_dtrain.train.checkpoint.trial_storage import TrialStorage
from airflow_provider_dtrain.train.checkpoint.unsaveable import located
from airflow_provider_dtrain.train.checkpoint.unsaved_parameters import warn_of_unsaved
from airflow_provider_dtrain.train.checkpoint.weight_digests import WeightDigests
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError, NonFiniteWeightsError
from airflow_provider_dtrain.train.files.file_systems import is_url
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.process.heartbeat import CHECKPOINT, HERE
from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.process.streams import Streams
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.values import FileFacts, JsonObject, StateDict

log = logging.getLogger(__name__)

#: Pauses before further tries of a save that the storage rejects, seconds. Training continues meanwhile.
RETRY_AFTER_S = (1.0, 5.0)
#: Name of a rank's tensors in a snapshot. No file has it.
_TENSORS = "tensors"


@dataclass(frozen=True)
class Copied:
    """Copy of a state, as far as this rank writes it."""

    #: File name -> content, except the tensors; rank 0 only.
    contents: Mapping[str, Any]
    #: Tensors that this rank writes; None: none.
    file: TensorFile | None
    plan: SavePlan | None
    is_sharded: bool


class Saver:
    """Writes and reads the checkpoints of one trial.

    Rank 0 writes. Small data that only another rank has (random states, gradients of an unfinished group, states of
    prepared objects that differ between the ranks) is sent to it. Each rank writes its parts of sharded tensors itself
    if it sees rank 0's folder, and sends them otherwise. On restore, ranks that do not see the folder get everything
    from rank 0, so a checkpoint needs to be on one host only.

    :param where: folder or URL for checkpoints
    :param has_earlier: True: ``restore`` may read it; False: it is a folder of this run alone
    """

    def __init__(
        self,
        env: RankEnvironment,
        distributed: Distributed,
        writer: EventWriter,
        prepared: Prepared,
        progress: Progress,
        gradients: Gradients,
        streams: Streams,
        *,
        where: Path | str,
        has_earlier: bool,
    ) -> None:
        self._env = env
        self._distributed = distributed
        self._writer = writer
        self._prepared = prepared
        self._progress = progress
        self._gradients = gradients
        self._streams = streams
        self.home = TrialStorage(env, where, has_earlier=has_earlier, is_chief=distributed.get_rank() == 0)
        self.restorer = Restorer(self.home, env, distributed, prepared, progress, gradients, streams)
        self.digests = WeightDigests(env.config, distributed.get_rank(), writer, prepared)
        self._snapshots = Snapshots()
        self._background = Background()
        self._rank_files = RankFiles(distributed, self.home.config)
        #: The ranks have compared the form of their models.
        self._compared = False
        self._warned = False

    @property
    def policy(self) -> Mapping[str, Any]:
        """``keep`` (best, all or none), and the numbers and the metric that decide which checkpoints are kept."""
        return self.home.policy

    # -- saving ----------------------------------------------------------------------------------------------------

    def copy(self, step: int | None, counters: Mapping[str, int], *, begins_pass: bool = False) -> Copied | None:
        """Return a copy of the state, None if checkpoints are switched off or weights are not finite.

        It is valid until the next call.

        Called by all ranks.

        :param step: the script's count of batches; None: the bodies of its loops are over
        :param counters: numbers of the training loop that a resumed run needs
        :param begins_pass: a further pass begins now
        :raises NonFiniteWeightsError: weights are not finite, and ``fail_on_nan`` is set
        """
        if self.policy["keep"] == "none":
            return None
        with HERE.at(CHECKPOINT):
            return self._copy(step, counters, begins_pass=begins_pass)

    def _copy(self, step: int | None, counters: Mapping[str, int], *, begins_pass: bool) -> Copied | None:
        self._finish_previous()
        self.home.claim()
        self._prepared.refuse_old_shards()
        self._refuse_other_forms()
        if self._is_dead():
            return None
        other_states = self._prepared.other_states()
        encoded = encode(other_states)
        self._warn_once(encoded)
        with located({"others": other_states}, self._prepared):
            apart = rank_states.gather(self._distributed, encoded)
        random_states = {**self._streams.state(), "before": self._progress.random_states(step)}
        ranks = self._distributed.gather((random_states, self._gradients.rank_state()))
        is_sharded = self._distributed.any(self._prepared.is_sharded() or holds_sharded(encoded))
        if ranks is None and not is_sharded:
            return Copied({}, None, None, is_sharded=False)
        original = self._state(other_states, counters, is_chief=ranks is not None)
        original["progress"] = self._progress.state(step, begins_pass=begins_pass)
        state = encode(original)
        skeleton, tensors = split(state)
        plan = save_plan.make(tensors, self._distributed, is_sharded=is_sharded)
        contents: StateDict = {disk.STATE: skeleton}
        if ranks is not None:
            contents[disk.RNG] = [rng for rng, _ in ranks]
            if any(pending for _, pending in ranks):
                contents[disk.PENDING] = [pending for _, pending in ranks]
            if apart is not None and any(apart):
                contents[disk.FURTHER] = apart
        # One walk over everything, so that each tensor is copied once.
        with located(original, self._prepared):
            taken = self._snapshots.take({**contents, _TENSORS: list(plan.tensors)})
        file = TensorFile([part.slot for part in plan.parts], taken.pop(_TENSORS))
        return Copied(taken, file, plan, is_sharded=is_sharded)

    def write(
        self, copied: Copied, step: int, facts: Mapping[str, Any], *, where: Path | str | None = None
    ) -> Path | str | None:
        """Write a copy of the state in the background. Return its path or URL on rank 0, None elsewhere.

        Called by all ranks.

        :param facts: JSON for the metadata
        :param where: return value of :meth:`place`, if it was called for this checkpoint
        """
        with HERE.at(CHECKPOINT):
            # The same copy may be written under two steps.
            self._finish_previous()
            if copied.plan is None or copied.file is None:
                return None
            if self._distributed.get_rank():
                self._deliver(step, copied)
                return None
            return self._write_in_background(step, copied, {**self._facts(), **facts}, where)

    def place(self, step: int) -> Path | str | None:
        """Return the path or URL that the next checkpoint of a step will have, None except on rank 0."""
        return None if self.home.storage is None else self.home.storage.reserve(step)

    def _is_dead(self) -> bool:
        """Return whether weights of a rank are not finite, so that a checkpoint of them would replace a good one."""
        names = next(filter(None, self._distributed.allgather(self._gradients.health.dead())), None)
        if names is None:
            return False
        if self._gradients.health.fails:
            raise NonFiniteWeightsError(names, "at a save, which is left out")
        if self._distributed.get_rank() == 0:
            log.warning("A checkpoint is left out, because the weights %s are not finite. The last one is kept.", names)
        return True

    def _warn_once(self, other_states: list[Any]) -> None:
        if not self._warned and self._distributed.get_rank() == 0:
            self._warned = True
            warn_of_unsaved(self._prepared, other_states)

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

    def _state(self, other_states: list[Any], counters: Mapping[str, int], *, is_chief: bool) -> StateDict:
        """Return the state to save. On other ranks than rank 0, only its sharded tensors count."""
        state = self._prepared.state(other_states) if is_chief else self._prepared.sharded_state(other_states)
        return {
            **state,
            "gradients": self._gradients.state_dict(),
            "sharded_gradients": self._gradients.sharded_gradients(),
            "counters": dict(counters),
        }

    def _deliver(self, step: int, copied: Copied) -> None:
        """Write this rank's file in the background. Runs on other ranks than rank 0."""
        begun = self._rank_files.begin(None)
        file = copied.file
        if begun is None or file is None or copied.plan is None or not copied.plan.parts:
            return

        def deliver() -> None:
            self._rank_files.deliver(begun, file)
            self.digests.checkpoint(step, {}, file.named)

        self._background.start("dtrain-checkpoint", deliver)

    def _write_in_background(
        self, step: int, copied: Copied, facts: Mapping[str, Any], where: Path | str | None
    ) -> Path | str:
        plan = copied.plan
        assert self.home.storage is not None
        assert plan is not None
        assert plan.index is not None
        where = self.home.storage.reserve(step) if where is None else where
        contents = dict(copied.contents)
        if plan.index:
            contents[INDEX] = plan.index.text()
        if plan.parts:
            contents[save_plan.file_name(0)] = copied.file
        begun, more = self._begin(where, step, plan.ranks) if copied.is_sharded else (None, None)
        write = partial(self.home.storage.write, where, step, contents, facts, begun=begun, more=more)
        # The parts of other ranks are collected once.
        pauses_s = () if copied.is_sharded else RETRY_AFTER_S
        named = () if copied.file is None else copied.file.named
        describe = partial(self.digests.checkpoint, step, copied.contents[disk.STATE], named)
        work = partial(self._write, self.home.storage, step, write, pauses_s, describe)
        self._background.start("dtrain-checkpoint", work)
        return where

    def _begin(
        self, where: Any, step: int, ranks: Sequence[int]
    ) -> tuple[Path | str | None, Callable[[], Mapping[str, FileFacts]]]:
        """Return the place of a checkpoint, and a function that waits for the files of other ranks.

        Called by rank 0 while the others deliver.

        :param ranks: ranks with a file
        """
        assert self.home.storage is not None
        try:
            self.home.sweep()
            place = self.home.storage.begin(where, step)
        except Exception as error:
            # The other ranks wait. The error is that of the save, which runs in the background.
            self._rank_files.begin(None)
            return None, partial(_fail, error)
        begun = self._rank_files.begin(place)
        assert begun is not None
        return place, partial(self._rank_files.collect, begun, ranks)

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
        self.home.claim()
        if self.home.storage is None:
            return None
        self.home.sweep()
        return self.home.storage.stage(step)

    def reserve(self, step: int) -> str:
        """Return the path or URL of the checkpoint that :meth:`publish` makes next. Called by rank 0."""
        return str(self.place(step))

    def publish(self, step: int, where: str, folder: Path, facts: Mapping[str, Any]) -> None:
        """Make a subfolder of :meth:`stage` a checkpoint, in the background. Called by rank 0.

        :param where: return value of :meth:`reserve`
        """
        assert self.home.storage is not None
        place = where if is_url(where) else Path(where)
        write = partial(self.home.storage.write_tree, place, step, folder, {**self._facts(), **facts})
        self._background.start("dtrain-checkpoint", partial(self._write, self.home.storage, step, write))

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

    def release(self) -> None:
        """Let other runs write to the folder."""
        self.home.release()

    def shown_latest(self) -> str | None:
        """Return the path of the newest checkpoint as events show it, or None."""
        return self.home.shown_latest()

    def settle(self) -> None:
        """Wait until no save is running. Log a failure instead of raising it."""
        try:
            self.finish()
        except Exception as error:
            log.error("%s", error)

    def _write(
        self,
        target: storage.Storage,
        step: int,
        write: Callable[[], SavedCheckpoint],
        pauses_s: Sequence[float] = (),
        describe: Callable[[], None] | None = None,
    ) -> None:
        """Write the checkpoint, prune, and write the event. Runs in the background.

        :param pauses_s: seconds before each further try when the storage rejects the checkpoint
        :param describe: records the digests of its weights
        """

        def attempt() -> SavedCheckpoint:
            self.home.check()
            self.home.sweep()
            return write()

        written = _tried(attempt, pauses_s)
        self.home.latest = written
        removed = target.prune(self.policy) if self.policy["keep"] == "best" else []
        if describe is not None:
            describe()
        self._writer.write(
            "checkpoint",
            {
                "step": step,
                "path": self.home.shown(written.url or written.path),
                "size_bytes": written.size_bytes,
                "sha256": written.sha256,
                "metrics": dict(written.metrics),
                "removed": [self.home.shown(path) for path in removed],
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
        self.home.claim()
        return self.restorer.restore(start_over=start_over)

    def find_files(self, scratch: Path, *, start_over: bool = False) -> tuple[SavedCheckpoint | None, bool]:
        """Return the newest intact checkpoint, and whether it is the source checkpoint. Called by rank 0.

        :param scratch: folder for copies
        :param start_over: find nothing when every checkpoint is damaged
        :raises CheckpointError: it was not written by ``ctx.checkpoint``, or the source checkpoint is damaged
        """
        self.finish()
        return self.restorer.find_files(scratch, start_over=start_over)

    def read_files(self, where: str, scratch: Path) -> SavedCheckpoint:
        """Return the checkpoint of files at a path or URL, after a check of its files.

        :param scratch: folder for copies
        :raises DamagedCheckpointError: it is damaged, or this host has none there
        :raises CheckpointError: it was not written by ``ctx.checkpoint``
        """
        self.finish()
        return self.restorer.read_files(where, scratch)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _facts(self) -> JsonObject:
        torch = imported("torch")
        return {
            "run": self._env.run,
            "trial_id": self._env.trial_id,
            "attempt": self._env.attempt,
            "world_size": self._distributed.get_size(),
            "torch": str(torch.__version__) if torch is not None else None,
            "written_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        }


def _fail(error: Exception) -> NoReturn:
    raise error


def _tried(write: Callable[[], SavedCheckpoint], pauses_s: Sequence[float]) -> SavedCheckpoint:
    for pause_s in pauses_s:
        try:
            return write()
        except CheckpointStorageError as error:
            log.warning("%s. The next try is in %g s.", str(error).rstrip("."), pause_s)
            time.sleep(pause_s)
    return write()
