"""Position of a trial in its data: the passes of its loaders, and where a resumed program continues.

A resumed program runs from its beginning, and enters its loop again at one of two kinds of places: where ``ctx.epochs``
begins an epoch, and where a loader hands out a batch. A position names such a place: the one before a batch as long as
the program has not trained it, and the one after it from then on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.train.data.passes import Pass, PassWork, form_of, reference
from airflow_provider_dtrain.train.process.seeding import derive
from airflow_provider_dtrain.train.values import StateDict

log = logging.getLogger(__name__)

#: Distance between the numbers of two passes over the same data in one epoch.
_AGAIN = 1 << 20
#: Bits of the number of a pass that runs in the body of another one.
_INNER_BITS = 31


@dataclass
class Progress:
    """Position of the trial in the data, part of every checkpoint.

    A checkpoint taken while every pass of the epoch is over counts that epoch as done. A pass is over when its loop has
    asked for a further batch, or was left, unless the program was asked to stop.
    """

    epoch: int = 0
    passes: list[Pass] = field(default_factory=list)
    #: Passes of a restored checkpoint, None for one that a loader has resumed.
    restored: list[Mapping[str, Any] | None] = field(default_factory=list)
    #: True inside ``ctx.epochs``.
    in_epochs: bool = False
    #: An epoch has begun, so :attr:`epoch` counts them.
    has_epochs: bool = False
    #: True in the last epoch of ``ctx.epochs``.
    last_epoch: bool = False
    #: ``ctx.loader`` was used. Without it, the position of training within an epoch is unknown.
    has_loader: bool = False
    #: Batches that all loaders of this process handed out. It is also the clock of the passes.
    handed: int = 0
    #: Without ``ctx.loader``: the current epoch counts as done, because it has validated or its loop body has ended.
    is_whole: bool = False
    #: The body of the current epoch has ended, and no further epoch or pass has begun.
    ended: bool = False
    #: The program knows that it must stop, so it may leave a loop in the middle of an epoch.
    is_stopping: bool = False
    #: Object with the number of backward passes.
    work: Any = field(default_factory=PassWork)
    #: A loop had nothing left in this process, because its batches or epochs were trained before.
    had_empty_loop: bool = False
    #: An iterator of an earlier epoch has handed out a batch. Its position is unknown after a restart.
    has_foreign_passes: bool = False
    #: Loops outside of ``ctx.epochs`` take turns with different data.
    has_turns: bool = False
    #: This rank logs warnings.
    is_chief: bool = True
    #: Random states are kept before each batch that this process loads, because a checkpoint was saved before training.
    keeps_random_states: bool = False
    #: A checkpoint lacks the random states before its next batch, of which it is not known whether they matter.
    is_unsure: bool = False
    #: Step at the start of this process, and batches of all processes before it.
    _start: int = 0
    _handed_before: int = 0
    _had_backward: bool = False
    _had_loops: bool = False
    #: Backward passes at the start of the epoch.
    _head: int = 0
    #: ``restored`` as it was in the checkpoint, and this rank's random states before the next batch of some passes.
    _specs: list[Mapping[str, Any]] = field(default_factory=list)
    _before: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    _has_checked: bool = False
    #: Data sets of earlier epochs outside of ``ctx.epochs``, unless each epoch has made its own.
    _datas: deque[Callable[[], Any]] = field(default_factory=lambda: deque(maxlen=8))
    #: An epoch of this process was resumed after some of its batches.
    _was_inside: bool = False
    _has_logged_left: bool = False

    @property
    def counts_epochs(self) -> bool:
        """True when the script uses ``ctx.epochs`` or ``ctx.loader``, so that the number of epochs is known."""
        return self.has_epochs or self.has_loader

    @property
    def has_backward(self) -> bool:
        """True when the program trains by ``ctx.backward``, as far as is known."""
        return self._had_backward or self.work.backwards > 0

    # -- epochs and passes ---------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch. Positions restored for it stay valid."""
        self.note_left()
        # An iterator from before the epochs goes on through all of them.
        self.passes = [one for one in self.passes if one.is_open and one.is_outside]
        if epoch != self.epoch:
            self._specs = []
        self.restored = [None if index < len(self.passes) else spec for index, spec in enumerate(self._specs)]
        self.epoch = epoch
        self.in_epochs = self.has_epochs = True
        self.is_whole = self.ended = False
        self._head = self.work.backwards

    def end_epoch(self) -> None:
        """Count the current epoch as done, because the body of its loop has ended."""
        self.note_left()
        self.ended = self.is_whole = True

    def begin_pass(self, data: Any = None) -> Pass:
        """Return the next pass, at its restored position if there is one.

        Outside ``ctx.epochs``, an epoch ends with the passes that run together.

        :param data: the data set of the loader
        """
        self.ended = False
        self._discard_first_pass()
        self.passes = [one for one in self.passes if not one.is_past]
        running = [one for one in self.passes if one.is_open]
        is_resuming = any(spec is not None for spec in self.restored[len(self.passes) :])
        if not (self.in_epochs or running or is_resuming) and self.passes:
            self._begin_own_epoch(data)
        ended = (one for one in self.passes if running and not (one.is_inner or one.is_open) and one.data() is data)
        again = next(ended, None)
        if again is None:
            current = self._next_pass(running)
            self.passes.append(current)
        else:
            # A loader that ended earlier than the one beside it, and starts again.
            current = Pass(number=self._number_after(again))
            self.passes[self.passes.index(again)] = current
            self.epoch = self.epoch if self.in_epochs else max(self.epoch, current.number)
        current.data = reference(data)
        current.form = form_of(data)
        current.began_with = self.work.backwards
        current.is_outside = not self.in_epochs
        return current

    def end_pass(self, one: Pass, *, is_whole: bool) -> None:
        """Note that the loop over a pass has asked for a further batch, or was left.

        :param is_whole: all batches were handed out
        """
        one.finished = one.finished or is_whole
        one.is_cut = not is_whole or (self.has_backward and self.work.backwards == one.backwards)
        one.ended_at = self.handed
        if one.outer is not None and one.outer.accounted == one.began_with:
            one.outer.accounted = self.work.backwards

    def note_batch(self, current: Pass) -> None:
        """Note a batch of a pass beside others, or of an earlier epoch."""
        self.has_foreign_passes = self.has_foreign_passes or not any(one is current for one in self.passes)
        for one in self.passes:
            one.spans = one.spans or (one.outer is current and one.is_open)

    def _begin_own_epoch(self, data: Any) -> None:
        self.note_left()
        known = self.passes[0].data
        if known() is not data:
            recurs = any(earlier() is data for earlier in self._datas)
            self.has_turns = self.has_turns or recurs or self.passes[0].form != form_of(data)
            self._datas.append(known)
        self.epoch += 1
        self.passes = []
        self.restored = []
        self._specs = []
        self.is_whole = False

    def note_left(self) -> None:
        """Log a warning, once, if a loop was left early in a run that was resumed inside an epoch."""
        left = self._was_inside and not self._has_run_out and any(one.is_cut and not one.is_open for one in self.passes)
        if left and self.is_chief and not (self.is_stopping or self._has_logged_left):
            self._has_logged_left = True
            log.warning(
                "A loop over ctx.loader was left by break in a run that was resumed in the middle of an epoch. A "
                "program that counts the batches of an epoch itself has begun to count anew there. Limit an epoch with "
                "ctx.loader(data, max_batches=n)."
            )

    def note_save(self, step: int | None) -> None:
        """Keep random states from now on if a checkpoint is saved before its batch is trained, or in an inner loop.

        :param step: the script's count of batches
        """
        again = [one for one in self.passes if one.is_open and one.handed_at and not self.is_trained(one, step)]
        if again:
            self.is_unsure = not self.keeps_random_states and any(one.before is None for one in again)
            self.keeps_random_states = True

    def note_draws(self, draws: bool) -> None:
        """Log a warning if the batches of an uncertain checkpoint are loaded with random numbers of this process.

        :param draws: a batch was
        """
        self.is_unsure = False
        if draws and self.is_chief:
            log.warning(
                "The first checkpoint that was saved before the end of its batch lacks the random numbers with which "
                "the batch was loaded: a run that resumes from it loads this batch with others. Later checkpoints have "
                "them. Call ctx.save_checkpoint at the end of the body of the outermost loop over ctx.loader."
            )

    def _next_pass(self, running: Iterable[Pass]) -> Pass:
        index = len(self.passes)
        # The pass in whose body the program is.
        bodies = [one for one in running if one.handed_at and one.is_outside != self.in_epochs]
        outer = max(bodies, key=lambda one: one.handed_at, default=None)
        spec = self.restored[index] if index < len(self.restored) else None
        if spec is not None:
            self.restored[index] = None
            current = Pass(**spec, is_restored=True, before=self._before.get(index))
            self._was_inside = self._was_inside or current.samples > 0 or current.is_again
        elif outer is not None:
            current = Pass(number=derive(outer.number, "inner", outer.samples, index) >> (63 - _INNER_BITS))
        else:
            current = Pass(number=self.epoch)
        if outer is not None:
            current.outer = outer
            current.body = outer.handed_at
            current.is_torn = outer.accounted != self.work.backwards
        return current

    def _number_after(self, one: Pass) -> int:
        return one.number + (_AGAIN if self.in_epochs else 1)

    def _discard_first_pass(self) -> None:
        """Undo the first pass of the process if it was a look at the data: left after one batch, without training."""
        if self._has_checked or self.handed != 1 or len(self.passes) != 1 or self.work.backwards:
            return
        if not (self.passes[0].is_open or self.passes[0].is_exhausted):
            self._has_checked = True
            self.passes = []
            self.restored = list(self._specs)

    # -- where the program is ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when every pass of the current epoch is over."""
        if self.ended:
            return True
        if not (self.has_loader or self.passes):
            return self.is_whole
        own = [one for one in self.passes if not (one.is_inner or (one.is_outside and self.in_epochs))]
        rest = self.restored[len(self.passes) :]
        return (
            bool(own)
            and all(self._is_done(one) for one in own)
            and all(spec is None or spec["finished"] for spec in rest)
        )

    def _is_done(self, one: Pass) -> bool:
        if one.finished or one.is_open:
            return one.finished
        # A program that stops may have left it before.
        return self._has_run_out or not self.is_stopping

    @property
    def _has_run_out(self) -> bool:
        """True when the latest loop has ended because it had no further batch. In zip(), the shortest pass ends all."""
        return any(one.is_exhausted and one.ended_at == self.handed and not one.is_inner for one in self.passes)

    @property
    def in_last_batch(self) -> bool:
        """True in the body of the last batch of a pass."""
        return any(one.is_last and one.is_open for one in self.passes)

    @property
    def in_loop(self) -> bool:
        """True in the body of a batch."""
        return self._here() is not None

    @property
    def is_torn(self) -> bool:
        """True in a loop inside the body of a batch that had trained before this loop began."""
        return any(one.is_torn and one.is_inner and one.is_open for one in self.passes)

    def leads(self, one: Pass) -> bool:
        """Return whether an iteration of the program's loop begins with a batch of this pass.

        Where several passes run side by side, it is the one that has handed out the first batch of all.
        """
        return self._leader(one) is one

    def is_before_training(self, step: int) -> bool:
        """Return whether the program has not yet trained the batch in whose body it is.

        :param step: the script's count of batches
        """
        here = self._here()
        return here is not None and not self.is_trained(here, step)

    def is_trained(self, one: Pass, step: int | None) -> bool:
        """Return whether the latest batch of a pass counts as trained.

        :param step: the script's count of batches; None: the bodies of all passes are over
        """
        if not one.handed_at:
            return True
        if any(inner.outer is one and inner.is_inner and inner.is_open for inner in self.passes):
            return False
        leader = self._leader(one)
        if step is None or one.handed_at < leader.handed_at:
            return True
        if leader is not one and not self.is_trained(leader, step):
            return False
        if self.work.backwards != leader.backwards:
            return True
        if not self.has_backward:
            return step > self._start
        # The program has left out this batch, and counts it.
        return len(self.passes) == 1 and step == self._handed_before + self.handed

    def left_out(self, step: int) -> int:
        """Return how many batches of the only pass count as trained, although no backward pass followed them."""
        if len(self.passes) != 1 or not self.passes[0].handed_at or not self.work.backwards:
            return 0
        (only,) = self.passes
        counted = only.handed_at - only.first_at + int(self.is_trained(only, step))
        backwards: int = self.work.backwards - only.began_with
        return max(0, counted - backwards)

    def _here(self) -> Pass | None:
        """Return the pass that leads the innermost loop in whose body the program is."""
        bodies = [one for one in self.passes if one.handed_at and one.is_open]
        return self._leader(max(bodies, key=lambda one: one.handed_at)) if bodies else None

    def _leader(self, one: Pass) -> Pass:
        beside = [
            other
            for other in self.passes
            if other.is_open and other.handed_at and other.is_inner == one.is_inner
            if not one.is_inner or other.outer is one.outer
        ]
        return min(beside, key=lambda other: other.first_at, default=one) if one.is_open else one

    @property
    def is_unknown(self) -> bool:
        """True when the program trains inside ``ctx.epochs`` on data that the library does not hand out."""
        return self.in_epochs and not (self.has_loader or self.is_whole) and self.work.backwards > self._head

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self, step: int | None = None, *, begins_pass: bool = False) -> StateDict:
        """Return the position as plain values.

        :param step: the script's count of batches; None: the bodies of all passes are over
        :param begins_pass: a further pass begins now
        """
        is_over = self.is_over and not (begins_pass and self.in_epochs)
        kept = self._kept(is_over=is_over)
        pending = [] if is_over else [spec for spec in self.restored[len(self.passes) :] if spec is not None]
        untrained = int(len(self.passes) == 1 and not self.is_trained(self.passes[0], step))
        # The program goes on in a batch or epoch that a resumed one does not enter again.
        is_behind = step is not None and bool(self.passes) and not self.is_before_training(step)
        return {
            "epoch": self.epoch + 1 if is_over else self.epoch,
            "passes": [*(self._spec(one, step) for one in kept), *pending],
            "handed": self._handed_before + self.handed - untrained,
            "has_backward": self.has_backward,
            "has_loops": self.counts_epochs or self._had_loops,
            "is_behind": is_behind,
            "left": [
                [one.samples, one.length] for one in self.passes if is_over and one.handed_at and not one.finished
            ],
        }

    def place(self, step: int | None = None, *, begins_pass: bool = False) -> Any:
        """Return what two positions have in common if a resumed program enters its loop at the same place."""
        state = self.state(step, begins_pass=begins_pass)
        return state["epoch"], state["passes"]

    def random_states(self, step: int | None) -> dict[int, Any]:
        """Return this rank's random states before batches that are loaded again, by the number of the pass."""
        kept = self._kept(is_over=self.is_over)
        found = [one.before if self._spec(one, step)["is_again"] else None for one in kept]
        pending = [] if self.is_over else range(len(self.passes), len(self.restored))
        found += [self._before.get(index) for index in pending if self.restored[index] is not None]
        return {index: states for index, states in enumerate(found) if states is not None}

    def _kept(self, *, is_over: bool) -> list[Pass]:
        """Return the passes that a resumed program continues."""
        if is_over:
            return [one for one in self.passes if one.is_open and one.is_outside and self.in_epochs]
        return [one for one in self.passes if not self._is_left_out(one)]

    def _is_left_out(self, one: Pass) -> bool:
        """Return whether a resumed program does not enter a pass at its place, because it runs in a body."""
        if not one.is_inner or one.is_open:
            return False
        return not any(other.outer is one.outer and other.is_inner and other.is_open for other in self.passes)

    def _spec(self, one: Pass, step: int | None) -> StateDict:
        running = [other for other in self.passes if other.is_open]
        if running and not (one.is_open or self.in_epochs) and one.ended_at == self.handed:
            # The loop over this pass has just ended, and the next one begins while others go on.
            return _fresh(self._number_after(one))
        is_trained = self.is_trained(one, step)
        is_finished = self._is_done(one) or (one.is_last and is_trained)
        return {
            "samples": one.samples if is_trained else one.samples - one.stride,
            "finished": is_finished,
            "sharing": one.sharing,
            "ranks": one.ranks,
            "length": one.length,
            "number": one.number,
            "is_again": (one.reads_ahead or not is_trained) and not is_finished if one.handed_at else one.is_again,
        }

    def load(
        self, state: Mapping[str, Any], step: int = 0, before: Mapping[int, Mapping[str, Any]] | None = None
    ) -> None:
        """Restore a saved position.

        :param step: the script's count of batches in the checkpoint
        :param before: return value of :meth:`random_states` on this rank
        """
        self._before = before or {}
        self.keeps_random_states = bool(before)
        self.epoch = state["epoch"]
        self._specs = list(state["passes"])
        self.restored = list(self._specs)
        self.passes = []
        self._start = step
        self._handed_before = state["handed"] - self.handed
        self._had_backward = state["has_backward"]
        self._had_loops = state["has_loops"]
        self.is_whole = self.ended = False


def _fresh(number: int) -> StateDict:
    spec = Pass(number=number)
    names = ("samples", "finished", "sharing", "ranks", "length", "number", "is_again")
    return {name: getattr(spec, name) for name in names}


def describe(state: Mapping[str, Any]) -> str:
    """Return where a saved position is, for a message."""
    rest = "batch" if any(not spec["finished"] for spec in state["passes"]) else "epoch"
    behind = f" What followed the call of ctx.save_checkpoint in its {rest} is not run again." * state["is_behind"]
    begun = next((spec for spec in state["passes"] if spec["samples"] and not spec["finished"]), None)
    if begun is not None:
        of = f" of {begun['length']}" if begun["length"] else ""
        return f"in epoch {state['epoch']}, after {begun['samples']}{of} samples.{behind}"
    left = ", ".join(f"{samples} of {length}" if length else str(samples) for samples, length in state["left"])
    left = f", because a loop was left after {left} samples of the epoch before" if left else ""
    return f"with epoch {state['epoch']}{left}.{behind}"
