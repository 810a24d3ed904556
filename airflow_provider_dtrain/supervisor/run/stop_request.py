"""Request to the ranks of a run to write a checkpoint and end, for ranks that do not use the training library."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from ..limits import ASK_AGAIN_S
from ..machine.processes import Proc, all_procs, send_signal
from ..machine.programs import ProcessTree, acts, key_of, passes_on
from .ranks import Rank


class StopRequest:
    """SIGTERM to the programs of ranks, once for each program, while the ranks run.

    A program that starts later gets it if it has a handler: the next command of a script may be the one that saves, or
    one that must reach its end, e.g. an upload.
    """

    def __init__(self) -> None:
        #: Processes of the host before the first signal. Their start times would not do: the next command of a script
        #: starts within the same 10 ms.
        self._earlier: set[tuple[int, int]] | None = None
        self._next = 0.0
        self._launchers = set[tuple[int, int]]()
        self._sent: dict[int, set[tuple[int, int]]] = {}
        #: When a process without a handler was first found to be a program, after another one had got the request.
        self._found: dict[tuple[int, int], float] = {}

    def send(self, ranks: Iterable[Rank]) -> None:
        """Send the request to the programs of some ranks that do not have it, at most once in :data:`ASK_AGAIN_S`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + ASK_AGAIN_S
        procs = all_procs()
        if self._earlier is None:
            self._earlier = {key_of(proc) for proc in procs.values()}
        tree = ProcessTree(procs, self._launchers)
        for rank in ranks:
            sent = self._sent.setdefault(rank.number, set())
            is_first = not sent
            for proc in tree.programs(rank.pid):
                key = key_of(proc)
                if key in sent or not (is_first or acts_later(proc) or self._is_left(proc, now)):
                    continue
                sent.add(key)
                rank.signalled = True
                send_signal(proc, signal.SIGTERM)

    def _is_left(self, proc: Proc, now: float) -> bool:
        """Return whether a process without a handler was there at the request, and is still the rank's program."""
        key = key_of(proc)
        since = self._found.setdefault(key, now)
        is_earlier = self._earlier is not None and key in self._earlier
        return is_earlier and not passes_on(proc) and now - since >= ASK_AGAIN_S


def acts_later(proc: Proc) -> bool:
    """Return whether a process gets the request although another one of its rank has got it."""
    return acts(proc) and not passes_on(proc)
