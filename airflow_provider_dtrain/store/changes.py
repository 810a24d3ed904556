"""Whoever waits for a gang sleeps here until something concerns it: one thread looks for all of a process."""

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
from airflow_provider_dtrain.store.engine import gate
from airflow_provider_dtrain.store.looks import Looks, Sign
from airflow_provider_dtrain.store.notify import Listener, Message, can_listen
from airflow_provider_dtrain.store.written import Written

log = logging.getLogger(__name__)

#: Between two looks for all waiters when the store tells what changes; only for what it might not have told.
LISTENING_LOOK_S = 2.0
#: Longest time until a change that was told is looked into. Each process takes another one: the first finds what is
#: to be granted, also for the others, who then have nothing to do.
SPREAD_S = 0.02
#: Between two looks at the files of a SQLite store, which tells nobody what has changed.
PEEK_S = 0.1
#: A grant that was told before anybody waited for it is remembered for so long.
REMEMBER_S = 10.0
#: A thread without waiters ends after this, and its connection with it.
IDLE_S = 60.0
#: Until the next try after a failed one to listen, doubled up to the second.
RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
#: What a waiter last knew is forgotten when nobody has waited for it for so long.
FORGET_S = 300.0

_making = threading.Lock()


@dataclass(eq=False)
class Waiter:
    """Somebody who sleeps until its pool, or its own request, needs it."""

    pool: str
    #: None: everything that happens in the pool concerns it.
    allocation_id: int | None
    wake: Callable[[], None]
    #: Seconds between two looks while nothing tells what changes.
    every_s: float = 1.0


@dataclass
class _Known:
    sign: Sign
    at_s: float = field(default_factory=time.monotonic)


class Changes:
    """Wakes waiters of one process: told by PostgreSQL where it can, else by looking for all of them at once.

    Where it looks, it does so every ``every_s``, and within ``PEEK_S`` after a SQLite store was written.

    Of the waiters of a pool one is woken to run its next pass, not all of them: it finds what is to be granted
    for everybody. Nothing depends on it for correctness: a waiter also wakes by its own time-out.
    """

    def __init__(self, looks: Looks) -> None:
        self._looks, self._pid = looks, os.getpid()
        self._waiters: dict[Waiter, None] = {}
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell_in, self._bell_out = socket.socketpair()
        for end in (self._bell_in, self._bell_out):
            end.setblocking(False)
        self._closed = False
        #: Pools that have changed, and when to look into them.
        self._told: set[str] = set()
        self._told_at = math.inf
        #: What was told between somebody's look at the store and its wait: pools, and allocations with the time.
        self._missed_pools: set[str] = set()
        self._missed_grants: dict[int, float] = {}
        self._used_at = time.monotonic()
        self._listener: Listener | None = None
        self._retry_s, self._retry_at = RETRY_S, 0.0
        self._can_listen = can_listen(looks._engine)
        self._written = Written(looks._engine.url)
        self._passes: set[tuple[Any, ...]] = set()

    @property
    def is_of_this_process(self) -> bool:
        """Whether no fork lies between its making and now: threads do not survive one."""
        return self._pid == os.getpid()

    @property
    def is_told(self) -> bool:
        """Whether the store tells what changes; False while it is only looked at."""
        return self._listener is not None

    def add(self, waiter: Waiter) -> None:
        """Wake somebody from now on, as often as something concerns it, until it is removed.

        What was told while nobody waited wakes it at once: it may have looked just before.
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
        """Wake somebody no more; repeatable."""
        with self._lock:
            self._waiters.pop(waiter, None)
            self._used_at = time.monotonic()

    def wait(self, pool: str, timeout_s: float, *, allocation_id: int | None = None, every_s: float = 1.0) -> bool:
        """Return whether something concerned the caller within the time; blocks its thread.

        :param allocation_id: the request that it waits for; None: everything in the pool concerns it
        :param every_s: seconds between two looks while nothing tells what changes
        """
        event = threading.Event()
        waiter = Waiter(pool, allocation_id, event.set, every_s)
        self.add(waiter)
        try:
            return event.wait(timeout_s)
        finally:
            self.remove(waiter)

    def wake_granted(self, pool: str, allocation_ids: Collection[int]) -> None:
        """Wake those who wait for grants that this process has just committed; no message has to come back for it."""
        self._wake_concerned(set(allocation_ids), {pool})

    def close(self) -> None:
        """End thread and connection; repeatable. In a forked child they belong to its parent."""
        if not self.is_of_this_process:
            return
        with self._lock:
            self._closed, thread = True, self._thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10.0)
        for end in (self._bell_in, self._bell_out):
            end.close()

    # -- the thread ----------------------------------------------------------------------------
    def _work(self) -> None:
        look_at = 0.0
        try:
            while self._goes_on():
                if time.monotonic() >= look_at:
                    self._try_to_listen()
                    self._look()
                    look_at = time.monotonic() + self._look_s()
                elif time.monotonic() >= self._told_at:
                    self._look_into_told()
                self._hear(min(look_at, self._told_at) - time.monotonic())
        except Exception:
            log.exception("Nobody is woken any more; waiters go on by their own time-outs")
            self._leave()

    def _goes_on(self) -> bool:
        with self._lock:
            idle = not self._waiters and time.monotonic() - self._used_at > IDLE_S
            if not self._closed and not idle:
                return True
            # In one step with the decision, so that whoever comes now starts the next thread.
            self._thread = None
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        return False

    def _leave(self) -> None:
        self._stop_listening()
        with self._lock:
            self._thread = None

    def _look_s(self) -> float:
        with self._lock:
            wanted = min((waiter.every_s for waiter in self._waiters), default=1.0)
        return max(LISTENING_LOOK_S, wanted) if self.is_told else wanted

    def _try_to_listen(self) -> None:
        if not self._can_listen or self._listener is not None or time.monotonic() < self._retry_at:
            return
        try:
            self._listener = Listener(self._looks._engine)
            self._retry_s = RETRY_S
        except StoreUnavailableError as error:
            log.info("%s Next try in %.0f s.", error, self._retry_s)
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, LONGEST_RETRY_S)

    def _stop_listening(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _hear(self, timeout_s: float) -> None:
        """Sleep until the time is over, wake those whom messages concern."""
        if self._listener is None:
            self._silence(timeout_s)
            return
        try:
            messages = self._listener.messages(self._bell_out, timeout_s)
        except StoreUnavailableError as error:
            log.info("%s Looking until it answers again.", error)
            self._stop_listening()
            return
        self._drain_bell()
        self._pass_on(messages)

    def _silence(self, timeout_s: float) -> None:
        """Sleep until the time is over or somebody rings; look at once when a pool has changed in a file."""
        poll, until = select.poll(), time.monotonic() + timeout_s
        poll.register(self._bell_out.fileno(), select.POLLIN)
        while (left := until - time.monotonic()) > 0 and not poll.poll(min(left, PEEK_S) * 1000):
            # Less is left only when the next look is due anyway.
            if left > PEEK_S and self._written.has_changed() and self._has_news():
                self._look_for_grants()
        self._drain_bell()

    def _has_news(self) -> bool:
        before = self._passes
        try:
            self._passes = self._looks.passes()
        except DtrainError as error:
            log.debug("The queue could not be looked at: %s", error)
        return self._passes != before

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_out.recv(4096)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_in.send(b"!")

    def _pass_on(self, messages: Sequence[Message]) -> None:
        changed = {message.pool for message in messages if not message.granted}
        if changed and not self._told:
            self._told_at = time.monotonic() + random.uniform(0, SPREAD_S)  # noqa: S311 - no secret
        self._told |= changed
        self._wake_concerned(
            {one for message in messages for one in message.granted}, {message.pool for message in messages}
        )

    def _wake_concerned(self, granted: set[int], touched: set[str]) -> None:
        """Wake those who wait for these grants, and those who want to hear of all that happens in these pools."""
        with self._lock:
            concerned = [
                waiter for waiter in self._waiters
                if waiter.allocation_id in granted or (waiter.allocation_id is None and waiter.pool in touched)
            ]  # fmt: skip
            now = time.monotonic()
            self._missed_grants = {one: at for one, at in self._missed_grants.items() if now - at < REMEMBER_S}
            self._missed_grants |= dict.fromkeys(granted - {waiter.allocation_id for waiter in concerned}, now)
        _wake(concerned)

    def _look_for_grants(self) -> None:
        """Wake whom a pass or a grant waits for, at a price that does not grow with the number of waiters."""
        try:
            due, granted = self._looks.due_and_granted()
        except DtrainError as error:
            log.debug("The queue could not be looked at: %s", error)
            return
        for pool in due:
            self._wake_one(pool)
        self._wake_concerned(granted, due)

    def _look_into_told(self) -> None:
        """Wake one waiter of each pool that has changed, unless a pass has already seen it."""
        names, self._told, self._told_at = sorted(self._told), set(), math.inf
        try:
            due = self._looks.due_pools(names)
        except DtrainError as error:
            log.debug("The queue could not be looked at: %s", error)
            return
        for pool in due:
            self._wake_one(pool)

    def _look(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        if not waiters:
            return
        ids = sorted({waiter.allocation_id for waiter in waiters if waiter.allocation_id is not None})
        try:
            due = self._looks.due_pools(sorted({waiter.pool for waiter in waiters}))
            signs = self._looks.request_signs(ids) if ids else {}
        except DtrainError as error:
            log.debug("The queue could not be looked at: %s", error)
            return
        for pool in due:
            self._wake_one(pool)
        changed = self._changed(signs)
        _wake([
            waiter for waiter in waiters
            if waiter.allocation_id in changed or (waiter.allocation_id is None and waiter.pool in due)
        ])  # fmt: skip

    def _changed(self, signs: Mapping[int, Sign]) -> set[int]:
        """Return the requests that are not as they were at the last look; one that is new has changed."""
        now = time.monotonic()
        changed = {one for one, sign in signs.items() if one not in self._known or self._known[one].sign != sign}
        self._known |= {one: _Known(sign, now) for one, sign in signs.items()}
        for one in [one for one, known in self._known.items() if now - known.at_s > FORGET_S]:
            del self._known[one]
        return changed

    def _wake_one(self, pool: str) -> None:
        """Wake the waiter of a pool that has run no pass for longest."""
        with self._lock:
            found = next((waiter for waiter in self._waiters if waiter.pool == pool), None)
            if found is None:
                self._missed_pools.add(pool)
            else:
                # Behind the others: if it does not come to its pass, the next look wakes another one.
                self._waiters[found] = self._waiters.pop(found)
        _wake([] if found is None else [found])


def _wake(waiters: Sequence[Waiter]) -> None:
    for waiter in waiters:
        try:
            waiter.wake()
        except Exception:
            # An event loop that was closed meanwhile, for instance.
            log.debug("A waiter could not be woken", exc_info=True)


class Watching(Looks):
    """A store that wakes those who wait."""

    _changes: Changes | None = None

    def changes(self) -> Changes:
        """Return what wakes this process's waiters; the same object until a fork."""
        # The gate keeps forks away while the lock is held: a child could never take it.
        with gate.transaction(), _making:
            if self._changes is None or not self._changes.is_of_this_process:
                self._changes = Changes(self)
            return self._changes


__all__ = ["Changes", "Waiter", "Watching"]
