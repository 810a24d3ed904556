"""Pool of links: one link per host for a whole process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.transport.base import Transport


@dataclass(frozen=True)
class HostAddress:
    """Parameters that are needed to reach a host, without a connection to it."""

    #: Name under which the host is registered.
    name: str
    #: Folder for the supervisor and payloads, relative to the home directory or absolute.
    remote_dir: str
    #: Folder on a local disk of the host, None for the supervisor's default.
    state_dir: str | None
    #: Interpreter that runs the supervisor: a program name or a path.
    python: str
    #: Makes a transport that is not connected yet; called once per connection.
    make_transport: Callable[[], Transport] = field(compare=False)
    #: Folder for the locks of all accounts of the host, None for the supervisor's default.
    lock_dir: str | None = None


class _Entry:
    """State of one host. Its own lock is held while connecting, so a slow host delays no other host."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.address: HostAddress | None = None
        self.link: HostLink | None = None
        self.users: set[Hashable] = set()

    def live(self, host: HostAddress) -> HostLink | None:
        """Return the link if it can be used for this address."""
        is_usable = self.link is not None and self.link.alive and self.address == host
        return self.link if is_usable else None


class Links:
    """Open links of this process, by host. Thread-safe.

    A caller that passes ``user`` shares the link with other callers and returns it with
    :meth:`release`. The link closes when its last user has released it. A caller without ``user``
    keeps it open until :meth:`drop` or :meth:`close_all`.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, host: HostAddress, *, user: Hashable = None, timeout_s: float = 30.0) -> HostLink:
        """Return the live link to a host, and connect if there is none. Blocks.

        If the host's address has changed, it gets a new link.

        :param user: the user that will release the link; two calls by the same user count once
        :raises EnvironmentMissingError: the host has no usable interpreter
        :raises HostError: the host cannot be reached, or breaks the protocol
        """
        entry = self._entry(host.name)
        with entry.lock:
            entry.users.add(user)
            if (live := entry.live(host)) is not None:
                return live
            stale = entry.link
            entry.link = None
            if stale is not None:
                stale.close()
            entry.link = HostLink.connect(
                host.make_transport(),
                remote_dir=host.remote_dir,
                state_dir=host.state_dir,
                lock_dir=host.lock_dir,
                python=host.python,
                timeout_s=timeout_s,
            )
            entry.address = host
            return entry.link

    def current(self, host: HostAddress) -> HostLink | None:
        """Return the live link to a host and keep it open like :meth:`get`, None if there is none. Never blocks."""
        entry = self._entry(host.name)
        if not entry.lock.acquire(blocking=False):
            return None
        try:
            if (live := entry.live(host)) is not None:
                entry.users.add(None)
            return live
        finally:
            entry.lock.release()

    def release(self, name: str, *, user: Hashable) -> None:
        """Release a link. It closes when its last user has released it."""
        entry = self._entry(name)
        with entry.lock:
            entry.users.discard(user)
            if entry.users:
                return
            link = entry.link
            entry.link = None
        if link is not None:
            link.close()

    def drop(self, name: str) -> None:
        """Close the link to a host for all its users. Subscribers get a frame ``lost``."""
        entry = self._entry(name)
        with entry.lock:
            link = entry.link
            entry.link = None
            entry.users.clear()
        if link is not None:
            link.close()

    def close_all(self) -> None:
        """Close every link. Repeatable."""
        with self._lock:
            names = list(self._entries)
        for name in names:
            self.drop(name)

    def _entry(self, name: str) -> _Entry:
        if self._pid != os.getpid():
            # A forked child owns neither its parent's connections nor the state of the parent's locks.
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._entries = {}
        with self._lock:
            return self._entries.setdefault(name, _Entry())
