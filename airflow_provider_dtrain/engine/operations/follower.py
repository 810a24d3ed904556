"""Operations that the followers of a process execute: one thread polls for all trials that the process follows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine.operations.ranks import NotWantedError
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.store.records.operations import StoredOperation, Through

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

log = logging.getLogger(__name__)

#: Period of the poll. It is one indexed query, whatever the number of trials.
POLL_S = 1.0
#: Operations that a process executes at one time.
THREADS = 2
#: Seconds for the answer of a trial's follower that names the trial's secrets.
SECRETS_MOST_S = 30.0
#: Function that returns the mask for a trial's secrets.
Redacting = Callable[[], "Redactor"]


class _Service:
    """Operations for the trials that this process follows."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        #: Trial -> its followers here. A follower may be replaced by another one of the same process.
        self._followed: dict[int, list[Redacting]] = {}
        self._thread: threading.Thread | None = None
        self._left = threading.Event()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="dtrain-operation")

    def follow(self, hook: DtrainHook, trial_id: int, redactor: Redacting) -> None:
        with self._lock:
            self._followed.setdefault(trial_id, []).append(redactor)
            if self._thread is None:
                self._left.clear()
                self._thread = threading.Thread(target=self._run, args=(hook,), name="dtrain-operations", daemon=True)
                self._thread.start()

    def leave(self, trial_id: int, redactor: Redacting) -> None:
        with self._lock:
            self._followed[trial_id].remove(redactor)
            if not self._followed[trial_id]:
                del self._followed[trial_id]
            if not self._followed:
                self._left.set()

    def _run(self, hook: DtrainHook) -> None:
        while True:
            self._left.wait(POLL_S)
            with self._lock:
                if not self._followed:
                    self._thread = None
                    return
                self._left.clear()
            # A store that is away is asked again.
            with contextlib.suppress(DtrainError):
                self._poll(hook)

    def _poll(self, hook: DtrainHook) -> None:
        for operation_id, trial_id in hook.store.operations.waiting():
            with self._lock:
                redactor = next(iter(self._followed.get(trial_id, ())), None)
            if redactor is None:
                continue
            taken = hook.store.operations.take(operation_id, Through.FOLLOWER)
            if taken is not None:
                self._threads.submit(_serve, hook, taken, redactor)


def _serve(hook: DtrainHook, operation: StoredOperation, redactor: Redacting) -> None:
    # Imported when it is needed: a follower of a trial starts faster without it.
    from airflow_provider_dtrain.engine.operations.execution import serve

    try:
        serve(hook, operation, redactor)
    except NotWantedError:
        log.info("The user no longer waits for operation %d", operation.operation_id)
    except Exception:
        log.warning("Operation %d was left without an end", operation.operation_id, exc_info=True)


def redacting(rt: Runtime) -> Redacting:
    """Return a function for other threads that returns the mask of the follower in the event loop of this thread.

    Airflow serves connections to a trigger only in its event loop.
    """
    loop = asyncio.get_running_loop()
    return lambda: asyncio.run_coroutine_threadsafe(rt.redactor(), loop).result(SECRETS_MOST_S)


_service: _Service | None = None


@contextlib.contextmanager
def serving(hook: DtrainHook, trial_id: int, redactor: Redacting) -> Iterator[None]:
    """Execute operations for a trial while the block follows it."""
    global _service
    if _service is None or _service.pid != os.getpid():
        _service = _Service()
    service = _service
    service.follow(hook, trial_id, redactor)
    try:
        yield
    finally:
        service.leave(trial_id, redactor)
