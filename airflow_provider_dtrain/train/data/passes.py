"""Passes of loaders through their data, and their places among each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class PassWork:
    """Count of the backward passes of this process: a batch without one was not trained."""

    backwards = 0


@dataclass(eq=False)
class Pass:
    """One pass of a loader through its data, and its place among the other passes."""

    #: Samples handed out so far, all ranks together.
    samples: int = 0
    finished: bool = False
    #: The way in which the ranks share the loader, and their number; empty and 0 in a new pass.
    sharing: str = ""
    ranks: int = 0
    #: Samples of the whole pass, all ranks together; 0: unknown.
    length: int = 0
    #: Number that chooses the order of the data. That of the epoch, unless an epoch has several passes over the data.
    number: int = 0
    #: The next batch was loaded before the checkpoint was saved.
    is_again: bool = False

    # -- in this process -----------------------------------------------------------------------------------------------

    #: The pass continues one of a checkpoint.
    is_restored: bool = False
    #: Reference to the data set of the loader.
    data: Callable[[], Any] = type(None)
    #: Type and length of the data set.
    form: Any = None
    #: Distance by which one batch moves the position.
    stride: int = 0
    #: ``Progress.handed`` at the first and latest batch, and at the end; 0: this process has handed out none.
    first_at: int = 0
    handed_at: int = 0
    ended_at: int = -1
    #: Backward passes at the beginning, and before the latest batch.
    began_with: int = 0
    backwards: int = 0
    #: The latest batch is the last one.
    is_last: bool = False
    #: The loop has asked for a further batch, and there was none.
    is_exhausted: bool = False
    #: The loop was left before the end of the pass, or before it trained the last batch.
    is_cut: bool = False
    #: Random states before the latest batch was loaded, where they are kept. Those of the first batch always are.
    before: Mapping[str, Any] | None = None
    #: Each batch is loaded before the one before it is handed out.
    reads_ahead: bool = False
    #: Pass in the body of whose batch this one began, and ``handed_at`` of that batch.
    outer: Pass | None = None
    body: int = 0
    #: The outer pass has handed out a batch meanwhile, so this one does not run inside one body.
    spans: bool = False
    #: Backward passes of this pass's current body, as far as inner passes account for them.
    accounted: int = 0
    #: The body in which the pass began had trained before, outside of inner passes.
    is_torn: bool = False
    #: The pass began outside of ``ctx.epochs``.
    is_outside: bool = False
    _iterator: Any = None

    def open(self, iterator: Any) -> None:
        """Set the iterator, with whose end the pass ends."""
        self._iterator = weakref.ref(iterator)

    @property
    def is_open(self) -> bool:
        """True until the loop over the pass is over: it has asked for a further batch, or it was left."""
        return not self.finished and self._iterator is not None and self._iterator() is not None

    @property
    def is_inner(self) -> bool:
        """True for a pass that runs, or ran, in the body of one batch of another pass."""
        return self.outer is not None and not self.spans

    @property
    def is_past(self) -> bool:
        """True for an inner pass whose body is over."""
        if self.outer is None or self.spans or self.is_open:
            return False
        return not (self.outer.is_open and self.outer.handed_at == self.body)


def reference(data: Any) -> Callable[[], Any]:
    """Return a function that returns a data set as long as the program keeps it, or None."""
    try:
        return weakref.ref(data)
    except TypeError:
        return type(None)


def form_of(data: Any) -> Any:
    """Return the type and the length of a data set."""
    try:
        return type(data), len(data)
    except (TypeError, NotImplementedError):
        return type(data), None
