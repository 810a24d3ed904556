"""Garbage collections of the API server, which stop all threads of the process while they examine objects."""

from __future__ import annotations

import gc
import time
from typing import Literal

#: Longest full collection that is not worth freezing what it left, in seconds of CPU.
LONG_S = 0.02
#: Seconds after which frozen objects are examined again, because some of them have become garbage.
AGAIN_S = 3600.0


class Garbage:
    """Keeps full collections short: objects that survived a long one are frozen, which means that none examines them.

    The code of Airflow's server is half a million objects that live as long as the process. Some of it is loaded by the
    first requests, so that freezing them once, at the start, is too early. A full collection that examined them took
    half a second of the request that it fell into, and came with every few requests.
    """

    def __init__(self) -> None:
        self._began_s = 0.0
        self._frozen_at = time.monotonic()

    def start(self) -> None:
        """Freeze what this process has loaded so far, and what survives long collections from now on."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.monotonic() - self._frozen_at > AGAIN_S:
            # The next full collection examines all objects, and they are frozen after it.
            self._frozen_at = time.monotonic()
            gc.unfreeze()
        elif time.thread_time() - self._began_s > LONG_S:
            gc.freeze()
