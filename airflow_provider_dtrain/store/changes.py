"""Whoever waits for a gang sleeps here until something concerns it: one thread looks for all of a process."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.errors import DtrainError, StoreUnavailableError
from airflow_provider_dtrain.store import fast
from airflow_provider_dtrain.store.base import Base, reads
from airflow_provider_dtrain.store.engine import gate
from airflow_provider_dtrain.store.fast import Statement
from airflow_provider_dtrain.store.notify import Listener, Message, can_listen
from airflow_provider_dtrain.store.tables import allocations, pools, trials

log = logging.getLogger(__name__)

#: Between two looks for all waiters when the store tells what changes; only for what it might not have told.
LISTENING_LOOK_S = 2.0
#: A thread without waiters ends after this, and its connection with it.
IDLE_S = 60.0
#: Until the next try after a failed one to listen, doubled up to the second.
RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
#: What a waiter last knew is forgotten when nobody has waited for it for so long.
FORGET_S = 300.0

_DUE = Statement(
    sa.select(pools.c.name).where(
        sa.or_(pools.c.version != pools.c.passed_version, pools.c.next_due_at <= sa.bindparam("now"))
    )
)
_SIGNS_OF = sa.select(
    allocations.c.id, allocations.c.state, allocations.c.unplaceable, allocations.c.paused,
    trials.c.kill_requested_at, trials.c.pause_requested_at,
).outerjoin(trials, trials.c.id == allocations.c.trial_id)  # fmt: skip
_LISTED: Any = sa.func.json_each(sa.bindparam("ids", type_=sa.JSON)).table_valued("value")
#: However many ids there are, it is one text that is compiled once.
_SIGNS = Statement(
    _SIGNS_OF.where(allocations.c.id.in_(sa.select(_LISTED.c.value))),
    _SIGNS_OF.where(allocations.c.id == sa.any_(sa.bindparam("ids", type_=postgresql.ARRAY(sa.BigInteger)))),
)

Sign = tuple[Any, ...]
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


class Looks(Base):
    """The two reads behind all waiters of a process."""

    @reads
    def due_pools(self, conn: Connection, names: Sequence[str]) -> list[str]:
        """Return those of the pools where a pass may decide something now."""
        due = {row.name for row in fast.rows(conn, _DUE, {"now": self._now()})}
        return [name for name in names if name in due]

    @reads
    def request_signs(self, conn: Connection, allocation_ids: Sequence[int]) -> dict[int, Sign]:
        """Return per request all of which a change has to wake whoever waits for it."""
        return {entry[0]: tuple(entry[1:]) for entry in fast.rows(conn, _SIGNS, {"ids": list(allocation_ids)})}


class Changes:
    """Wakes waiters of one process: told by PostgreSQL where it can, else by looking for all of them at once.

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
        self._used_at = time.monotonic()
        self._listener: Listener | None = None
        self._retry_s, self._retry_at = RETRY_S, 0.0
        self._can_listen = can_listen(looks._engine)

    @property
    def is_of_this_process(self) -> bool:
        """Whether no fork lies between its making and now: threads do not survive one."""
        return self._pid == os.getpid()

    @property
    def is_told(self) -> bool:
        """Whether the store tells what changes; False while it is only looked at."""
        return self._listener is not None

    def add(self, waiter: Waiter) -> None:
        """Wake somebody from now on, as often as something concerns it, until it is removed."""
        with self._lock:
            self._waiters[waiter] = None
            self._used_at = time.monotonic()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="dtrain-changes", daemon=True)
                self._thread.start()

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
                self._hear(look_at - time.monotonic())
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
        poll = select.poll()
        poll.register(self._bell_out.fileno(), select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)
        self._drain_bell()

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_out.recv(4096)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_in.send(b"!")

    def _pass_on(self, messages: Sequence[Message]) -> None:
        for pool in dict.fromkeys(message.pool for message in messages if not message.granted):
            self._wake_one(pool)
        granted = {one for message in messages for one in message.granted}
        touched = {message.pool for message in messages}
        with self._lock:
            concerned = [
                waiter for waiter in self._waiters
                if waiter.allocation_id in granted or (waiter.allocation_id is None and waiter.pool in touched)
            ]  # fmt: skip
        _wake(concerned)

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
            if found is not None:
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
