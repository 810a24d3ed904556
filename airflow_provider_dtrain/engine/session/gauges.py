"""Gauge passes: slots and gangs of all pools as metrics, every 10 s while this process follows trials."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import GAUGES_S
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.store.meter import Metric

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store

log = logging.getLogger(__name__)


@contextlib.contextmanager
def measuring(store: Store) -> Iterator[None]:
    """Run gauge passes over a store during the block, and one after it. Does nothing in a process without metrics."""
    if not store.db.meter.is_on:
        yield
        return
    passes = _passes_of(store)
    passes.enter()
    try:
        yield
    finally:
        passes.leave()


def emit_gauges(store: Store) -> None:
    """Emit the gauges of all pools, by three queries."""
    meter = store.db.meter
    for pool in store.cluster_page.pools():
        values = {
            Metric.FREE_SLOTS: pool.free,
            Metric.USED_SLOTS: pool.held,
            Metric.UNUSABLE_SLOTS: pool.slots - pool.free - pool.held,
            Metric.WAITING_GANGS: pool.waiting,
            Metric.RUNNING_GANGS: pool.running,
            Metric.LOST_HOSTS: pool.lost_hosts,
        }
        for metric, value in values.items():
            meter.gauge(metric, value, {"pool_name": pool.name})


class GaugePasses:
    """One thread per process and store that runs gauge passes while a coroutine follows a trial."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users = 0
        #: Number of coroutines that have left so far.
        self._left = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Run passes from now on."""
        with self._lock:
            self._users += 1
            self._idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dtrain-gauges", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """Stop the passes after one more, unless other coroutines follow trials."""
        with self._lock:
            self._users -= 1
            self._left += 1
            if not self._users:
                self._idle.set()

    def _work(self) -> None:
        while True:
            # The last pass shows the state after the last trial, so it begins after the last user has left.
            self._idle.wait(GAUGES_S)
            left = self._left
            try:
                emit_gauges(self._store)
            except DtrainError as error:
                log.debug("Gauges are emitted again in %.0f s: %s", GAUGES_S, error)
            except Exception:
                log.exception("Gauges are emitted again in %.0f s", GAUGES_S)
            with self._lock:
                if not self._users and left == self._left:
                    self._thread = None
                    return


_passes: dict[tuple[int, Store], GaugePasses] = {}
_making = threading.Lock()


def _passes_of(store: Store) -> GaugePasses:
    """Return this process's passes over a store. A forked child gets its own ones."""
    key = os.getpid(), store
    with _making:
        if key not in _passes:
            for other in [known for known in _passes if known[0] != key[0]]:
                del _passes[other]
            _passes[key] = GaugePasses(store)
        return _passes[key]
