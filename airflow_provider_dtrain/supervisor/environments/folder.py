"""Folder of an environment, its lock, its mark of completeness, and the state of its build."""

from __future__ import annotations

import contextlib
import enum
import errno
import glob
import hashlib
import os
import random
import stat
import time
from collections.abc import Iterator

from ..file_access import read_json, write_json
from ..files.layout import Layout
from ..files.trees import remove_tree, tree_bytes
from ..machine.locks import take_lock
from ..machine.processes import LIBC
from ..names import DELETED, Json
from ..refusal import Refused

#: Written last, with a sample of the files and their digests.
_COMPLETE = "dtrain-environment.json"
#: Files of a sample, largest one of them that is read, and number of them that a launch reads.
_SAMPLE, _SAMPLE_BYTES, _READ = 512, 256 << 10, 16
#: Longest time that the lock is held by a process that only checks the environment.
_CHECK_S = 1.0


class Use(enum.Enum):
    """Use of an environment."""

    #: This host has nothing of it.
    ABSENT = "absent"
    #: Neither a run nor a build holds it.
    FREE = "free"
    #: A run uses it.
    RUN = "run"
    #: A process builds or removes it.
    CHANGE = "change"


class EnvironmentFolder:
    """One environment below ``remote_dir``.

    Its lock is held exclusively while it is built or removed, and shared while a run uses it. Processes that only check
    it hold it for a moment, so those that need it retry.
    """

    def __init__(self, layout: Layout, digest: str) -> None:
        self.digest = digest
        self.path = layout.environment(digest)
        #: Files of a build, removed at its end.
        self.work = f"{self.path}.work"
        self._lock = f"{self.path}.lock"
        self._state = f"{self.path}.build"

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return os.path.join(self.path, "bin", "python")

    def has_files(self) -> bool:
        """Return whether a complete environment, or files of a build, are on this host."""
        return os.path.lexists(self.path) or os.path.lexists(self.work)

    def use(self) -> Use:
        """Return the use of the environment now. It creates nothing."""
        if not self.has_files() and not any(map(os.path.lexists, (self._lock, self._state))):
            return Use.ABSENT
        for shared, use in ((False, Use.FREE), (True, Use.RUN)):
            try:
                lock = self._take(shared=shared, create=False)
            except FileNotFoundError:
                return Use.FREE
            if lock is not None:
                os.close(lock)
                return use
        return Use.CHANGE

    def share(self) -> int | None:
        """Return a descriptor that keeps the environment from being changed, None if it is being changed.

        :raises FileNotFoundError: it does not exist
        """
        return self._wait(time.monotonic() + _CHECK_S, shared=True)

    def seize(self, deadline: float | None = None) -> int | None:
        """Return a descriptor that holds the lock exclusively, None if the deadline has passed.

        :param deadline: on the monotonic clock; None: the end of any check that is made now
        """
        return self._wait(time.monotonic() + _CHECK_S if deadline is None else deadline, shared=False)

    def _wait(self, deadline: float, *, shared: bool) -> int | None:
        while True:
            lock = self._take(shared=shared, create=not shared)
            if lock is not None or time.monotonic() > deadline:
                return lock
            time.sleep(0.01)

    def _take(self, *, shared: bool, create: bool) -> int | None:
        """Return a descriptor that holds the lock, None if another process holds it in the way.

        :raises Refused: ``no_lock``, the file system has no locks
        """
        if create:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        try:
            return take_lock(self._lock, shared=shared, create=create)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            message = f"{os.path.dirname(self.path)} is on a file system without locks ({error.strerror})"
            raise Refused("no_lock", f"{message}. Set remote_dir of this host to a folder of another one.") from error

    def state(self) -> Json:
        """Return the state of the last build, {} without one."""
        return read_json(self._state) or {}

    def write_state(self, state: Json) -> None:
        """Record the state of a build. The caller holds the lock."""
        write_json(self._state, state, durable=False)

    def mark(self) -> Json | None:
        """Return the mark of a complete environment, None if it is not complete."""
        return read_json(os.path.join(self.path, _COMPLETE))

    def remove_mark(self) -> None:
        """Let the environment count as incomplete. The caller holds the lock exclusively."""
        with contextlib.suppress(FileNotFoundError):
            os.chmod(self.path, 0o700)
            os.unlink(os.path.join(self.path, _COMPLETE))

    def touch(self) -> None:
        """Record that the environment is used now. Old ones are removed."""
        with contextlib.suppress(OSError):
            os.utime(self._lock)

    def used_at(self) -> float:
        """Return when the environment was last used, as Unix time."""
        try:
            return os.stat(self._lock).st_mtime
        except OSError:
            return 0.0

    def damage(self, mark: Json) -> str | None:
        """Return what is wrong with a sample of the files of a complete environment, None if nothing is."""
        if not os.path.exists(self.python):
            return "its interpreter is gone"
        sample: list[list[object]] = mark.get("sample") or []
        for name, size, digest in random.sample(sample, min(_READ, len(sample))):
            if (problem := self._file_problem(str(name), size, digest)) is not None:
                return f"{name} {problem}"
        return None

    def _file_problem(self, name: str, size: object, digest: object) -> str | None:
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_size != size:
                    return "has another size"
                if digest is not None and hashlib.sha256(file.read()).hexdigest() != digest:
                    return "has another content"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None

    def complete(self, facts: Json) -> None:
        """Make all files read-only, and then mark the environment as complete."""
        sample = self._sample()
        size = tree_bytes(self.path)
        for path, found in _entries(self.path):
            if not stat.S_ISLNK(found.st_mode) and path != self.path:
                os.chmod(path, stat.S_IMODE(found.st_mode) & 0o555)
        # After a crash of the host, a mark must not stand beside files that were never written.
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        LIBC.syncfs(folder)
        os.close(folder)
        write_json(os.path.join(self.path, _COMPLETE), {**facts, "bytes": size, "sample": sample})
        os.chmod(self.path, 0o500)

    def _sample(self) -> list[list[object]]:
        """Return names, sizes and digests of some installed files. Large ones have no digest, which would take long."""
        files = [(path, found.st_size) for path, found in _entries(self.path) if stat.S_ISREG(found.st_mode)]
        large = sorted(files, key=lambda one: -one[1])[:_READ]
        small = [one for one in files if one[1] <= _SAMPLE_BYTES]
        sample: list[list[object]] = []
        for path, size in random.sample(small, min(_SAMPLE, len(small))):
            with open(path, "rb") as file:
                sample.append([os.path.relpath(path, self.path), size, hashlib.sha256(file.read()).hexdigest()])
        known = {name for name, _, _ in sample}
        for path, size in large:
            if (name := os.path.relpath(path, self.path)) not in known:
                sample.append([name, size, None])
        return sample

    def clear(self) -> None:
        """Remove the environment and the files of its build. The caller holds the lock exclusively."""
        if os.path.lexists(self.path):
            # A partly removed environment must not look complete.
            hidden = f"{self.path}.{random.getrandbits(48):012x}{DELETED}"
            os.chmod(self.path, 0o700)
            os.rename(self.path, hidden)
        # One may be left of a removal that was killed.
        for left in glob.glob(f"{glob.escape(self.path)}.*{DELETED}"):
            remove_tree(left)
        self.clear_work()

    def clear_work(self) -> None:
        """Remove the files of a build. The caller holds the lock exclusively."""
        if os.path.lexists(self.work):
            remove_tree(self.work)

    def remove(self) -> Use:
        """Remove the environment, its lock and its state, if it is free. Return its use until then."""
        if (use := self.use()) is Use.ABSENT:
            return use
        fd = self.seize()
        if fd is None:
            # Its holder may have ended since then.
            return use if (use := self.use()) in (Use.RUN, Use.CHANGE) else Use.CHANGE
        try:
            self.clear()
            for path in (self._state, self._lock):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        finally:
            os.close(fd)
        return Use.FREE

    def make_room(self) -> str:
        """Create the folder for the files of a build, and return it."""
        os.makedirs(self.work, mode=0o700)
        return self.work


def _entries(root: str) -> Iterator[tuple[str, os.stat_result]]:
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(folder, name)
            yield path, os.lstat(path)
