"""A simulated site: trials live on a clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Protocol

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.connections import make_engine, parse_url
from airflow_provider_dtrain.store.store import Store, migrate

#: Yields seconds to wait, or the allocation whose grant it waits for.
Life = Generator["float | Awaits", None, None]
#: Seconds between two renewals of waiting requests: the queue skips a request that is silent for 60 s.
RENEW_EVERY_S = 45.0
#: In real time: seconds between two turns, two looks at control requests, and two renewals of leases.
TURN_S, ASKED_EVERY_S, LEASES_EVERY_S = 0.1, 0.5, 20.0
#: Seconds between a grant and the follower that takes it up.
TAKE_UP_S = 1.5


class AskedError(Exception):
    """A user or another gang requests something of a trial. Thrown into its life, which reads the requests."""


class EndedError(Exception):
    """The trial of a life has ended while it waited."""


class Follower(Protocol):
    """The follower of a trial, which carries out control requests."""

    @property
    def is_asked(self) -> bool:
        """True when there is a control request that the trial has not carried out yet."""


class Awaits:
    """A life continues once this request is granted.

    :param renew: renews the request
    """

    def __init__(self, allocation_id: int, pool: str, renew: Callable[[], None]) -> None:
        self.allocation_id = allocation_id
        self.pool = pool
        self.renew = renew


class Clock:
    """The store's clock, which only the simulation moves."""

    def __init__(self, at: datetime) -> None:
        self.now = at

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def advance_to(self, at: datetime, *, less_s: float = 0.0) -> None:
        self.now = max(self.now, at - timedelta(seconds=less_s))

    @property
    def unix(self) -> float:
        return self.now.timestamp()


class Simulation:
    """A store and the lives in it.

    :param url: of a store; it is created and migrated if needed
    :param now: end of the simulation
    :param hours: length of the history
    """

    def __init__(self, url: str, now: datetime, hours: float) -> None:
        self.end = now
        self.clock = Clock(now - timedelta(hours=hours))
        self.store = open_store(url, self.clock)
        #: Allocation -> the life that waits for it.
        self.waiting: dict[int, tuple[Awaits, Life]] = {}
        #: Renews the lease of each run that is still followed.
        self.leases: dict[int, int] = {}
        #: Follower -> the life of its trial.
        self.followers: dict[Follower, Life] = {}
        self._stepping: Life | None = None
        self._heap: list[tuple[datetime, int, Life]] = []
        self._numbers = itertools.count()
        self._renewed_at = self.clock.now

    def at(self, hours_before_end: float, life: Life) -> None:
        """Begin a life at a time before the end of the simulation."""
        self._push(self.end - timedelta(hours=hours_before_end), life)

    def soon(self, life: Life, after_s: float = 0.0) -> None:
        """Begin a life now, or after some seconds."""
        self._push(self.clock.now + timedelta(seconds=after_s), life)

    def run(self) -> None:
        """Let all lives run until the end of the simulation. Lives that last longer stay as they are then."""
        while self._heap and self._heap[0][0] <= self.end:
            at, _, life = heapq.heappop(self._heap)
            self._advance(at)
            self._step(life)
            self._settle()
        self._advance(self.end)
        self._renew()
        self._settle()
        self.store.attempts.renew(self.leases)

    def follow(self, is_over: Callable[[], bool]) -> None:
        """Let the lives go on in real time, and carry out control requests of users.

        :param is_over: checked several times in a second
        """
        leases_at = asked_at = 0.0
        while not is_over():
            self._advance(datetime.now(UTC))
            while self._heap and self._heap[0][0] <= self.clock.now:
                self._step(heapq.heappop(self._heap)[2])
            if time.monotonic() >= asked_at:
                asked_at = time.monotonic() + ASKED_EVERY_S
                self._carry_out()
            if time.monotonic() >= leases_at:
                leases_at = time.monotonic() + LEASES_EVERY_S
                self._renew()
                self.store.attempts.renew(self.leases)
            self._settle()
            time.sleep(TURN_S)

    def begin_follow(self, follower: Follower) -> None:
        """Record the follower of the life that runs now."""
        if self._stepping is not None:
            self.followers[follower] = self._stepping

    def _carry_out(self) -> None:
        for follower, life in list(self.followers.items()):
            if not follower.is_asked:
                continue
            for allocation_id, (_, other) in list(self.waiting.items()):
                if other is life:
                    del self.waiting[allocation_id]
            self._heap = [entry for entry in self._heap if entry[2] is not life]
            heapq.heapify(self._heap)
            self._step(life, AskedError())

    def _push(self, at: datetime, life: Life) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), life))

    def _advance(self, to: datetime) -> None:
        """Move the clock, with renewals of the waiting requests on the way."""
        step = timedelta(seconds=RENEW_EVERY_S)
        while self.waiting and self._renewed_at + step < to:
            self.clock.now = max(self.clock.now, self._renewed_at + step)
            self._renew()
        self.clock.now = max(self.clock.now, to)

    def _renew(self) -> None:
        self._renewed_at = self.clock.now
        for awaits, _ in list(self.waiting.values()):
            awaits.renew()

    def _step(self, life: Life, error: Exception | None = None) -> None:
        """Let a life continue.

        :param error: raised in the life
        """
        self._stepping = life
        try:
            wanted = next(life) if error is None else life.throw(error)
        except (StopIteration, EndedError):
            self.followers = {one: other for one, other in self.followers.items() if other is not life}
            return
        finally:
            self._stepping = None
        if isinstance(wanted, Awaits):
            if not self.waiting:
                self._renewed_at = self.clock.now
            self.waiting[wanted.allocation_id] = (wanted, life)
        else:
            self._push(self.clock.now + timedelta(seconds=wanted), life)

    def _settle(self) -> None:
        """Run the scheduling passes that are due, and wake the lives whose gangs were granted."""
        for pool in sorted({awaits.pool for awaits, _ in self.waiting.values()}):
            for allocation_id in self.store.queue.schedule(pool).granted:
                if (found := self.waiting.pop(allocation_id, None)) is not None:
                    self._push(self.clock.now + timedelta(seconds=TAKE_UP_S), found[1])


def open_store(url: str, clock: Clock) -> Store:
    """Return a migrated store with a clock of its own.

    SQLite does not wait for the disk at each commit: a seeded store that a power cut destroys is seeded again.
    """
    migrate(url)
    engine = make_engine(parse_url(url))
    if engine.dialect.name == "sqlite":
        # Registered after the store's own listener, which sets it to FULL.
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return Store(engine, clock=clock)
