"""One link per host for a whole process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from airflow_provider_dtrain.hosts.link import HostLink
from airflow_provider_dtrain.hosts.transport import Transport


@dataclass(frozen=True)
class HostAddress:
    """All that is needed to reach a host, without a connection to it."""

    #: Name under which the host is registered.
    name: str
    #: Folder for the supervisor and payloads, relative to the home directory or absolute.
    remote_dir: str
    #: Folder on a disk of the host itself, None for the supervisor's default.
    state_dir: str | None
    #: Interpreter that runs the supervisor: a name or a path.
    python: str
    #: Makes a transport that has not connected yet; called once per connection.
    make_transport: Callable[[], Transport] = field(compare=False)
    #: Folder for the locks of all accounts of the host, None for the supervisor's default.
    lock_dir: str | None = None


class _Entry:
    """What is known of one host. Its lock is held while connecting, so that one slow host delays no other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.address: HostAddress | None = None
        self.link: HostLink | None = None
        self.users: set[Hashable] = set()


class Links:
    """The open links of this process, by host. Thread-safe.

    A caller that names itself (``user``) shares the link with others and gives it back with
    :meth:`release`; the link closes when its last user has. Callers without a name keep it open
    until :meth:`drop` or :meth:`close_all`.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, host: HostAddress, *, user: Hashable = None, timeout_s: float = 30.0) -> HostLink:
        """Return the live link to a host; connects when there is none. Blocks.

        An address that has changed since gets a new link.

        :param user: who will release it; asking twice counts once
        :raises EnvironmentMissingError: no usable interpreter on the host
        :raises HostError: the host cannot be reached, or answers nonsense
        """
        entry = self._entry(host.name)
        with entry.lock:
            entry.users.add(user)
            if entry.link is not None and entry.link.alive and entry.address == host:
                return entry.link
            stale, entry.link = entry.link, None
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

    def release(self, name: str, *, user: Hashable) -> None:
        """Give a link back; it closes when nobody else uses it."""
        entry = self._entry(name)
        with entry.lock:
            entry.users.discard(user)
            if entry.users:
                return
            link, entry.link = entry.link, None
        if link is not None:
            link.close()

    def drop(self, name: str) -> None:
        """Close the link to a host for everybody; subscribers get a frame ``lost``."""
        entry = self._entry(name)
        with entry.lock:
            link, entry.link = entry.link, None
            entry.users.clear()
        if link is not None:
            link.close()

    def close_all(self) -> None:
        """Close every link; repeatable."""
        with self._lock:
            names = list(self._entries)
        for name in names:
            self.drop(name)

    def _entry(self, name: str) -> _Entry:
        if self._pid != os.getpid():
            # A forked child owns none of its parent's connections, nor the state of their locks.
            self._pid, self._lock, self._entries = os.getpid(), threading.Lock(), {}
        with self._lock:
            return self._entries.setdefault(name, _Entry())
