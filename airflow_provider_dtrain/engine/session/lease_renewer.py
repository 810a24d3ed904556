"""Lease renewal: one thread per process, one store transaction per heartbeat of its hosts."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import PROGRESS_LIMIT_S
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.hosts.wire import Beat

if TYPE_CHECKING:
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.store import Store

log = logging.getLogger(__name__)


@dataclass
class Follower:
    """One attempt that this process follows."""

    attempt_id: int
    watch: int
    store: Store
    orphan_timeout_s: float
    #: time.monotonic() of the coroutine's last step
    progressed_at: float = field(default_factory=time.monotonic)


class Renewer:
    """Renewer that commits renewals in the store first, and then notifies the hosts."""

    def __init__(self) -> None:
        self._followers: dict[str, Follower] = {}
        #: Only the latest heartbeat of each host, so that a flood of them takes no memory.
        self._beats: dict[HostLink, Beat] = {}
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self, run: str, follower: Follower) -> None:
        """Renew this run's lease from now on."""
        with self._lock:
            self._followers[run] = follower
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dtrain-renew", daemon=True)
                self._thread.start()

    def progress(self, run: str) -> None:
        """Note that the run's coroutine is alive."""
        if (follower := self._followers.get(run)) is not None:
            follower.progressed_at = time.monotonic()

    def leave(self, run: str) -> None:
        """Stop renewing this run's lease."""
        with self._lock:
            self._followers.pop(run, None)

    def beat(self, link: HostLink, frame: Beat) -> None:
        """Record a host's heartbeat. The link's reader thread calls it, so it returns at once."""
        self._beats[link] = frame
        self._news.set()

    def _work(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            beats = [self._beats.popitem() for _ in range(len(self._beats))]
            try:
                self._renew(beats)
            except DtrainError as error:
                log.warning("Leases were not renewed; the next heartbeat retries: %s", error)
            except Exception:
                log.exception("Leases were not renewed; the next heartbeat retries")

    def _renew(self, beats: list[tuple[HostLink, Beat]]) -> None:
        now = time.monotonic()
        alive = {run for _, frame in beats for run in frame["runs"]}
        with self._lock:
            wanted = {
                run: follower
                for run, follower in self._followers.items()
                if run in alive and now - follower.progressed_at < PROGRESS_LIMIT_S
            }
        current: set[str] = set()
        held_s: dict[Store, float] = {}
        for store in {follower.store for follower in wanted.values()}:
            held_s[store] = store.maintenance.left_s()
            mine = {run: follower for run, follower in wanted.items() if follower.store is store}
            renewed = store.attempts.renew({follower.attempt_id: follower.watch for follower in mine.values()})
            current |= {run for run, follower in mine.items() if follower.attempt_id in renewed}
        for link, frame in beats:
            self._send(link, frame, {run: wanted[run] for run in current & set(frame["runs"])}, held_s)

    @staticmethod
    def _send(link: HostLink, frame: Beat, runs: dict[str, Follower], held_s: Mapping[Store, float]) -> None:
        """Send the heartbeat's clock reading back, so that a late answer cannot extend a deadline.

        :param held_s: store -> least seconds that leases must last, because a user holds them
        """
        lasts_s = {run: _lease_s(follower, held_s[follower.store]) for run, follower in runs.items()}
        for timeout_s in set(lasts_s.values()):
            link.renew([run for run in runs if lasts_s[run] == timeout_s], frame["boottime_s"], timeout_s)


def _lease_s(follower: Follower, held_s: float) -> float:
    """Return the length of a lease in seconds. A lease of 0 never ends, so none is longer."""
    return max(follower.orphan_timeout_s, held_s) if follower.orphan_timeout_s else 0.0


_renewers: dict[int, Renewer] = {}


def renewer() -> Renewer:
    """Return this process's renewer."""
    pid = os.getpid()
    if pid not in _renewers:
        _renewers.clear()
        _renewers[pid] = Renewer()
    return _renewers[pid]
