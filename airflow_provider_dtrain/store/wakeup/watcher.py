"""Wake-up of coroutines and threads that wait for a gang. One watcher thread per process polls or listens for all."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.errors import DtrainError, StoreUnavailableError
from airflow_provider_dtrain.store.database.connections import gate
from airflow_provider_dtrain.store.database.notifications import PoolChange
from airflow_provider_dtrain.store.database.transactions import Database
from airflow_provider_dtrain.store.wakeup.pg_notify import Listener, can_listen
from airflow_provider_dtrain.store.wakeup.polling import Polling, Sign
from airflow_provider_dtrain.store.wakeup.sqlite_wal import Written

log = logging.getLogger(__name__)

#: Poll period for all waiters while the store sends notifications. It only covers notifications that were lost.
LISTENING_POLL_S = 2.0
#: Longest delay between a notification and the query for it. Each process draws its own delay: the first one grants
#: for all processes, so that the rest find nothing to do.
SPREAD_S = 0.02
#: Period of the check of a SQLite store's files, because SQLite sends no notifications.
PEEK_S = 0.1
#: Time for which a notified grant without a waiter is remembered.
REMEMBER_S = 10.0
#: A thread without waiters ends after this time, and closes its connection.
IDLE_S = 60.0
#: First delay before LISTEN is retried, and its limit: the delay doubles with each failure.
RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
#: The last known state of a request is forgotten after this time without a waiter.
FORGET_S = 300.0

_making = threading.Lock()


@dataclass(eq=False)
class Waiter:
    """A coroutine or thread that waits for its pool or its own request to change."""

    pool: str
    #: The request that it waits for; None: every change in the pool wakes it.
    allocation_id: int | None
    wake: Callable[[], None]
    #: Poll period in seconds while the store sends no notifications.
    every_s: float = 1.0


@dataclass
class _Known:
    sign: Sign
    at_s: float = field(default_factory=time.monotonic)


class Changes:
    """Wakes the waiters of one process, by PostgreSQL notifications where possible, else by polling for all at once.

    It polls every ``every_s``, and within ``PEEK_S`` after a write to a SQLite store.

    Only one waiter of a pool is woken to run the next pass, because that pass grants for all of them. Correctness does
    not depend on this class: a waiter also wakes by its own time-out.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._polling = Polling(db)
        self._pid = os.getpid()
        self._waiters: dict[Waiter, None] = {}
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell_in, self._bell_out = socket.socketpair()
        for end in (self._bell_in, self._bell_out):
            end.setblocking(False)
        self._closed = False
        #: Pools that have changed, and the time at which to query them.
        self._notified: set[str] = set()
        self._notified_at = math.inf
        #: Notifications that came between a caller's query and its wait: pools, and allocations with the time.
        self._missed_pools: set[str] = set()
        self._missed_grants: dict[int, float] = {}
        self._used_at = time.monotonic()
        self._listener: Listener | None = None
        self._retry_s = RETRY_S
        self._retry_at = 0.0
        self._can_listen = can_listen(db.engine)
        self._written = Written(db.engine.url)
        self._passes: set[tuple[Any, ...]] = set()

    @property
    def is_of_this_process(self) -> bool:
        """True unless the process has forked since the creation: threads do not survive a fork."""
        return self._pid == os.getpid()

    @property
    def is_notified(self) -> bool:
        """True while the store sends notifications, False while it is polled."""
        return self._listener is not None

    def add(self, waiter: Waiter) -> None:
        """Wake a waiter at each relevant change until it is removed.

        A notification that came just before wakes it at once, because the waiter may have queried the store earlier.
        """
        with self._lock:
            self._waiters[waiter] = None
            is_late = waiter.pool in self._missed_pools or waiter.allocation_id in self._missed_grants
            self._missed_pools.discard(waiter.pool)
            if waiter.allocation_id is not None:
                self._missed_grants.pop(waiter.allocation_id, None)
            self._used_at = time.monotonic()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="dtrain-changes", daemon=True)
                self._thread.start()
        if is_late:
            _wake([waiter])

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter. Repeatable."""
        with self._lock:
            self._waiters.pop(waiter, None)
            self._used_at = time.monotonic()

    def wait(self, pool: str, timeout_s: float, *, allocation_id: int | None = None, every_s: float = 1.0) -> bool:
        """Block the thread, and return whether a relevant change came within the time.

        :param allocation_id: the request that the caller waits for; None: every change in the pool is relevant
        :param every_s: poll period in seconds while the store sends no notifications
        """
        event = threading.Event()
        waiter = Waiter(pool, allocation_id, event.set, every_s)
        self.add(waiter)
        try:
            return event.wait(timeout_s)
        finally:
            self.remove(waiter)

    def wake_granted(self, pool: str, allocation_ids: Collection[int]) -> None:
        """Wake the waiters for grants that this process has just committed, without a notification."""
        self._wake_concerned(set(allocation_ids), {pool})

    def close(self) -> None:
        """Stop the thread and close its connection. Repeatable, without effect in a forked child."""
        if not self.is_of_this_process:
            return
        with self._lock:
            self._closed = True
            thread = self._thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10.0)
        for end in (self._bell_in, self._bell_out):
            end.close()

    # -- the thread ----------------------------------------------------------------------------
    def _work(self) -> None:
        poll_at = 0.0
        try:
            while self._goes_on():
                if time.monotonic() >= poll_at:
                    self._try_to_listen()
                    self._poll()
                    poll_at = time.monotonic() + self._poll_s()
                elif time.monotonic() >= self._notified_at:
                    self._check_notified()
                self._receive(min(poll_at, self._notified_at) - time.monotonic())
        except Exception:
            log.exception("The watcher thread failed; waiters wake by their own time-outs")
            self._leave()

    def _goes_on(self) -> bool:
        with self._lock:
            idle = not self._waiters and time.monotonic() - self._used_at > IDLE_S
            if not self._closed and not idle:
                return True
            # Under the same lock as the decision, so that the next waiter starts a new thread.
            self._thread = None
            listener = self._listener
            self._listener = None
        if listener is not None:
            listener.close()
        return False

    def _leave(self) -> None:
        self._stop_listening()
        with self._lock:
            self._thread = None

    def _poll_s(self) -> float:
        with self._lock:
            wanted = min((waiter.every_s for waiter in self._waiters), default=1.0)
        return max(LISTENING_POLL_S, wanted) if self.is_notified else wanted

    def _try_to_listen(self) -> None:
        if not self._can_listen or self._listener is not None or time.monotonic() < self._retry_at:
            return
        try:
            self._listener = Listener(self._db.engine)
            self._retry_s = RETRY_S
        except StoreUnavailableError as error:
            log.info("%s Next attempt to listen in %.0f s.", error, self._retry_s)
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, LONGEST_RETRY_S)

    def _stop_listening(self) -> None:
        with self._lock:
            listener = self._listener
            self._listener = None
        if listener is not None:
            listener.close()

    def _receive(self, timeout_s: float) -> None:
        """Sleep until a notification or the time-out, and wake the waiters that it concerns."""
        if self._listener is None:
            self._silence(timeout_s)
            return
        try:
            messages = self._listener.messages(self._bell_out, timeout_s)
        except StoreUnavailableError as error:
            log.info("%s The store is polled until LISTEN works again.", error)
            self._stop_listening()
            return
        self._drain_bell()
        self._pass_on(messages)

    def _silence(self, timeout_s: float) -> None:
        """Sleep until the time-out or a wake-up, and poll early when a SQLite store has changed."""
        poll = select.poll()
        until = time.monotonic() + timeout_s
        poll.register(self._bell_out.fileno(), select.POLLIN)
        while (left := until - time.monotonic()) > 0 and not poll.poll(min(left, PEEK_S) * 1000):
            # With less time left, the regular poll is due anyway.
            if left > PEEK_S and self._written.has_changed() and self._has_news():
                self._check_grants()
        self._drain_bell()

    def _has_news(self) -> bool:
        before = self._passes
        try:
            self._passes = self._polling.passes()
        except DtrainError as error:
            log.debug("The queue could not be polled: %s", error)
        return self._passes != before

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_out.recv(4096)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_in.send(b"!")

    def _pass_on(self, messages: Sequence[PoolChange]) -> None:
        changed = {message.pool for message in messages if not message.granted}
        if changed and not self._notified:
            self._notified_at = time.monotonic() + random.uniform(0, SPREAD_S)  # noqa: S311 - no secret
        self._notified |= changed
        self._wake_concerned(
            {one for message in messages for one in message.granted}, {message.pool for message in messages}
        )

    def _wake_concerned(self, granted: set[int], touched: set[str]) -> None:
        """Wake the waiters for these grants, and those for every change in these pools."""
        with self._lock:
            concerned = [
                waiter
                for waiter in self._waiters
                if waiter.allocation_id in granted or (waiter.allocation_id is None and waiter.pool in touched)
            ]
            now = time.monotonic()
            self._missed_grants = {one: at for one, at in self._missed_grants.items() if now - at < REMEMBER_S}
            self._missed_grants |= dict.fromkeys(granted - {waiter.allocation_id for waiter in concerned}, now)
        _wake(concerned)

    def _check_grants(self) -> None:
        """Wake waiters for due passes and new grants.

        The cost does not grow with the number of waiters.
        """
        try:
            due, granted = self._polling.due_and_granted()
        except DtrainError as error:
            log.debug("The queue could not be polled: %s", error)
            return
        for pool in due:
            self._wake_one(pool)
        self._wake_concerned(granted, due)

    def _check_notified(self) -> None:
        """Wake one waiter of each changed pool, unless a pass has already seen the change."""
        names = sorted(self._notified)
        self._notified = set()
        self._notified_at = math.inf
        try:
            due = self._polling.due_pools(names)
        except DtrainError as error:
            log.debug("The queue could not be polled: %s", error)
            return
        for pool in due:
            self._wake_one(pool)

    def _poll(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        if not waiters:
            return
        ids = sorted({waiter.allocation_id for waiter in waiters if waiter.allocation_id is not None})
        try:
            due = self._polling.due_pools(sorted({waiter.pool for waiter in waiters}))
            signs = self._polling.request_signs(ids) if ids else {}
        except DtrainError as error:
            log.debug("The queue could not be polled: %s", error)
            return
        for pool in due:
            self._wake_one(pool)
        changed = self._changed(signs)
        _wake(
            [
                waiter
                for waiter in waiters
                if waiter.allocation_id in changed or (waiter.allocation_id is None and waiter.pool in due)
            ]
        )

    def _changed(self, signs: Mapping[int, Sign]) -> set[int]:
        """Return the requests that have changed since the last poll. A new request counts as changed."""
        now = time.monotonic()
        changed = {one for one, sign in signs.items() if one not in self._known or self._known[one].sign != sign}
        self._known |= {one: _Known(sign, now) for one, sign in signs.items()}
        for one in [one for one, known in self._known.items() if now - known.at_s > FORGET_S]:
            del self._known[one]
        return changed

    def _wake_one(self, pool: str) -> None:
        """Wake the waiter of a pool that was woken least recently."""
        with self._lock:
            found = next((waiter for waiter in self._waiters if waiter.pool == pool), None)
            if found is None:
                self._missed_pools.add(pool)
            else:
                # To the end of the line: if it does not run its pass, the next poll wakes another waiter.
                self._waiters[found] = self._waiters.pop(found)
        _wake([] if found is None else [found])


def _wake(waiters: Sequence[Waiter]) -> None:
    for waiter in waiters:
        try:
            waiter.wake()
        except Exception:
            # For instance, its event loop was closed meanwhile.
            log.debug("A waiter could not be woken", exc_info=True)


class Wakeup:
    """Wake-up of this process's waiters for slots."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._changes: Changes | None = None

    def changes(self) -> Changes:
        """Return the object that wakes this process's waiters, the same one until a fork."""
        # The gate prevents forks while the lock is held, because a child could never acquire it.
        with gate.transaction(), _making:
            if self._changes is None or not self._changes.is_of_this_process:
                self._changes = Changes(self._db)
            return self._changes

    def wake_granted(self, pool: str, allocation_ids: Collection[int]) -> None:
        """Wake the waiters of this process for grants that it has just committed, if any of them waits."""
        if allocation_ids and self._changes is not None and self._changes.is_of_this_process:
            self._changes.wake_granted(pool, allocation_ids)

    def close(self) -> None:
        """Stop the watcher thread. Repeatable, without effect in a forked child."""
        if self._changes is not None:
            self._changes.close()


__all__ = ["Changes", "Waiter", "Wakeup"]
