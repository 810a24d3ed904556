"""Points of the training loop at which the state of a checkpoint is copied.

A checkpoint is exact if its state is that of the place where a resumed program enters the loop again. So a call of
``ctx.save_checkpoint`` copies the state at once, with two exceptions. In the last batch of a pass, the copy is taken
when the epoch is over, because a resumed program does not run the rest of the epoch. After a loader has ended an epoch
early for a stop, the copy of that moment counts, because a resumed program runs the end of the epoch once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.saver import Copied, Saver
from airflow_provider_dtrain.train.checkpoint.state_mark import TRAINING, StateMark
from airflow_provider_dtrain.train.data.boundary import Boundary
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.prepared import Prepared

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Awaited:
    """A checkpoint that the next boundary completes."""

    step: int
    #: State and position of its copy; None: it is not copied yet.
    mark: StateMark | None = None
    position: Any = None
    #: Path or URL that it will have.
    where: Path | str | None = None


class SavePoints(Boundary):
    """Takes the copies of a script's checkpoints.

    :param counters: returns the numbers of the training loop that a resumed run needs
    :param facts: returns the metadata of a checkpoint of a step
    """

    def __init__(
        self,
        saver: Saver,
        progress: Progress,
        prepared: Prepared,
        distributed: Distributed,
        *,
        counters: Callable[[], Mapping[str, int]],
        facts: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self._saver = saver
        self._progress = progress
        self._prepared = prepared
        self._distributed = distributed
        self._counters = counters
        self._facts = facts
        self._awaited: _Awaited | None = None
        self._left: Copied | None = None
        self._warned: set[str] = set()

    def save(self, step: int) -> str | None:
        """Save a checkpoint, called by a script on all ranks. Return its path or URL on rank 0, None elsewhere."""
        progress = self._progress
        where = self._settle(step)
        self._warn(step)
        if self._left is not None:
            return _text(self._saver.write(self._left, step, self._facts(step), where=where))
        is_before = progress.is_before_training(step)
        if progress.in_last_batch and not is_before:
            where = where or self._saver.place(step)
            self._expect(_Awaited(step, where=where))
            return _text(where)
        progress.note_save(step)
        copied = self._saver.copy(step, self._counters())
        if progress.passes and not (is_before or progress.is_stopping):
            mark = StateMark.of(self._prepared, progress.work)
            self._expect(_Awaited(step, mark, progress.place(step)))
        return None if copied is None else _text(self._saver.write(copied, step, self._facts(step), where=where))

    def _settle(self, step: int) -> Path | str | None:
        """Complete the checkpoint of another step that is not copied yet.

        Return the place that was reported for this step already, None without one.
        """
        owed = self._awaited
        if owed is None or owed.mark is not None:
            self._expect(None)
            return None
        if owed.step == step:
            self._expect(None)
            return owed.where
        if self._progress.in_loop:
            self._warn_once(
                "replaced",
                f"The checkpoint of step {owed.step} is not written, because the same batch, the last of its loop, "
                f"saves step {step} as well. Save once in a batch.",
            )
            self._expect(None)
        else:
            self.reach()
        return None

    def reach(self, *, begins_pass: bool = False) -> None:
        """Complete the checkpoint that waits for a boundary."""
        awaited = self._awaited
        self._expect(None)
        if awaited is None:
            return
        if awaited.mark is not None and not self._is_incomplete(awaited, begins_pass=begins_pass):
            return
        self._progress.note_save(None)
        copied = self._saver.copy(None, self._counters(), begins_pass=begins_pass)
        if copied is not None:
            self._saver.write(copied, awaited.step, self._facts(awaited.step), where=awaited.where)

    def _is_incomplete(self, awaited: _Awaited, *, begins_pass: bool) -> bool:
        """Return whether a checkpoint must be saved again, because the program has changed its state or place since."""
        assert awaited.mark is not None
        now = StateMark.of(self._prepared, self._progress.work)
        changes = sorted({name for names in self._distributed.allgather(awaited.mark.changes(now)) for name in names})
        if TRAINING in changes:
            # The script's count of batches has moved on as well.
            self._warn_once(
                "training",
                f"The checkpoint of step {awaited.step} was saved in the middle of a batch, which was trained further "
                "after the call: a run that resumes from it leaves out the rest of the batch. Call "
                "ctx.save_checkpoint after the last ctx.step of the batch.",
            )
            return False
        if changes:
            self._warn_once(
                "changes",
                f"The checkpoint of step {awaited.step} was saved before the end of its batch or epoch: "
                f"{', '.join(changes)} changed after the call. It is saved again now, as in each such case. Call "
                "ctx.save_checkpoint at the end of the loop body, or at the end of the epoch.",
            )
        return bool(changes) or awaited.position != self._progress.place(begins_pass=begins_pass)

    def leave(self) -> None:
        """Copy the state for a checkpoint that the script saves before it exits."""
        if not self.has_left:
            self.has_left = True
            self._left = self._saver.copy(None, self._counters())

    def train(self) -> None:
        """Complete a checkpoint of an epoch that is over, before the program trains without a further loop."""
        awaited = self._awaited
        if awaited is not None and awaited.mark is None and not self._progress.in_loop:
            self._warn_once(
                "late",
                f"The checkpoint of step {awaited.step} was saved in the last batch of a loop over ctx.loader, and the "
                "training goes on without a further loop. What a model computed after the loop is in the checkpoint "
                "(running statistics, random numbers). Call ctx.save_checkpoint after the loop.",
            )
            self.reach()

    def finish(self, *, alone: bool = True) -> None:
        """Copy the state for a checkpoint that is not copied yet, at the end of the program.

        :param alone: False: the other ranks may not come this far
        """
        self._progress.note_left()
        awaited = self._awaited
        if awaited is None or awaited.mark is not None:
            return
        if not alone:
            log.error(
                "The checkpoint of step %d was not written, because the program has ended in the last batch of a loop, "
                "without its other ranks. Use 'with dtrain.init() as ctx'.",
                awaited.step,
            )
            return
        if not any(one.is_exhausted for one in self._progress.passes):
            self._warn_once(
                "end",
                f"The checkpoint of step {awaited.step} was saved in the last batch of a loop over ctx.loader, and the "
                "program has left this loop and ended: a run that resumes from it begins with the next epoch, and does "
                "not run what follows the loop in this one.",
            )
        self.reach()

    def _expect(self, awaited: _Awaited | None) -> None:
        self._awaited = awaited
        self.is_awaited = awaited is not None

    def _warn(self, step: int) -> None:
        """Name loops whose position a checkpoint cannot hold."""
        progress = self._progress
        if progress.is_torn:
            self._warn_once(
                "torn",
                f"The checkpoint of step {step} was saved in a loop over ctx.loader in the body of another one, which "
                "had trained before the inner loop began: a run that resumes from it trains that part of the batch "
                "again. Call ctx.save_checkpoint at the end of the outer loop's body.",
            )
        if progress.has_foreign_passes:
            self._warn_once(
                "strangers",
                f"The checkpoint of step {step} lacks the position of an iterator that was made in an earlier epoch: a "
                "run that resumes from it begins this data again. Make it before ctx.epochs, or in each epoch.",
            )
        if progress.has_turns:
            self._warn_once(
                "turns",
                f"The checkpoint of step {step} was saved by a program whose loops over ctx.loader take turns with "
                "different data outside of ctx.epochs: a run that resumes from it continues the first loop that it "
                "runs. Put the loops into 'for epoch in ctx.epochs(n)'.",
            )
        left_out = progress.left_out(step)
        if left_out:
            self._warn_once(
                "left out",
                f"The checkpoint of step {step} counts {left_out} batches as done that ctx.loader has handed out in "
                "this epoch and that no ctx.backward followed: a run that resumes from it does not get them again. "
                "This is right if the program leaves batches out, and wrong if it reads ahead of its training, as "
                "list(ctx.loader(data)) does.",
            )
        if progress.is_unknown and not self._prepared.further:
            self._warn_once(
                "unknown",
                f"The checkpoint of step {step} was saved in an epoch whose data is not from ctx.loader, before its "
                "validation: a run that resumes from it begins the epoch again. Take the batches from ctx.loader, "
                "register an object that keeps the position, or save after ctx.report_validation.",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            if self._distributed.get_rank() == 0:
                log.warning("%s", text)


def _text(path: Any) -> str | None:
    return None if path is None else str(path)
