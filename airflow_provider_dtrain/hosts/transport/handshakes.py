"""Bound on the connections that this process begins through one bastion at the same time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: sshd drops connections at random while ten others are not authenticated (MaxStartups 10:30:100). Two are left to
#: other processes.
MOST_BEGUN = 8
#: Seconds after which a connection no longer counts. The bastion has authenticated it by then, and the proxy waits for
#: its host, which may be down.
COUNTED_S = 3.0


class Handshakes:
    """Connections through one bastion that have begun and not received their first bytes. Thread-safe."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        #: Connection -> reading of the monotonic clock after which it no longer counts.
        self._begun: dict[object, float] = {}

    @contextmanager
    def beginning(self, deadline: float) -> Iterator[None]:
        """Wait for a place, and count as a connection while the block runs.

        :param deadline: reading of the monotonic clock
        :raises TimeoutError: no place became free before the deadline
        """
        one = object()
        with self._change:
            while (wait_s := self._wait_s()) > 0.0:
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    raise TimeoutError
                self._change.wait(min(wait_s, left_s))
            self._begun[one] = time.monotonic() + COUNTED_S
        try:
            yield
        finally:
            with self._change:
                self._begun.pop(one, None)
                self._change.notify()

    def _wait_s(self) -> float:
        """Return the seconds until a place is free at the latest, 0 while there is one."""
        now = time.monotonic()
        self._begun = {one: until for one, until in self._begun.items() if until > now}
        return 0.0 if len(self._begun) < MOST_BEGUN else min(self._begun.values()) - now


_handshakes: dict[tuple[int, str], Handshakes] = {}


def handshakes_of(bastion: str) -> Handshakes:
    """Return the connections of this process through a bastion. A forked child has none yet."""
    return _handshakes.setdefault((os.getpid(), bastion), Handshakes())
