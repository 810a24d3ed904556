"""Files below a folder of this host, or of storage that hosts share."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, TypeVar

from airflow_provider_dtrain.train.files.digests import Hashing
from airflow_provider_dtrain.train.files.place import Explain, explained

#: Suffixes of folders that do not count.
_TEMPORARY, _DELETED = ".tmp", ".deleted"
#: Begin of the names of files that do not count.
_INCOMPLETE = ".incomplete-"

#: Error numbers of file systems without links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})

_T = TypeVar("_T")


class LocalPlace:
    """Implementation of :class:`Place` that renames what is complete and durable.

    :param incomplete: folder of the place, and first part of the names, for files that are not complete; None: they are
        in the place itself, and those of other processes go with :meth:`sweep_folders`
    """

    renames = True

    def __init__(
        self, path: Path | str, *, incomplete: tuple[str, str] | None = None, explain: Explain | None = None
    ) -> None:
        self.location = str(path)
        self._root = Path(path)
        folder, self._prefix = incomplete or ("", f"{_INCOMPLETE}{os.getpid()}-")
        self._temporary = self._root / folder
        self._explain = explain

    # -- files -----------------------------------------------------------------------------------------------------

    def entries(self, folder: str = "") -> dict[str, str]:
        with self._explained():
            try:
                with os.scandir(self._root / folder) as found:
                    return {one.name: _kind(one) for one in found}
            except (FileNotFoundError, NotADirectoryError):
                return {}

    def names(self, folder: str = "") -> list[str]:
        return sorted(name for name, kind in self.entries(folder).items() if kind == "file")

    def size(self, name: str) -> int | None:
        with self._explained():
            try:
                return (self._root / name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, name: str, limit_bytes: int | None = None) -> bytes | None:
        with self._explained():
            try:
                with open(self._root / name, "rb") as file:
                    return file.read(limit_bytes)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        contents = {name: self.read(name) for name in names}
        return {name: content for name, content in contents.items() if content is not None}

    def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        with self.scratch() as file:
            with self._explained():
                file.write_bytes(content)
            if is_durable:
                self.deliver(file, name)
            else:
                with self._explained():
                    os.replace(file, self._root / name)

    def create(self, name: str, content: bytes) -> bool | None:
        with self.scratch() as file, self._explained():
            file.write_bytes(content)
            sync(file)
            try:
                # A link, unlike a rename, fails when the name exists, also over NFS.
                os.link(file, self._root / name)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return None
        return True

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        with self._explained():
            _make(self._temporary)
            descriptor, name = tempfile.mkstemp(dir=str(self._temporary), prefix=self._prefix)
        try:
            with self._explained():
                # mkstemp lets only this account read it, whatever the umask.
                os.fchmod(descriptor, readable_mode())
                os.close(descriptor)
            yield Path(name)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)

    def deliver(self, file: Path, name: str) -> None:
        target = self._root / name
        with self._explained():
            sync(file)
            _make(target.parent)
            os.replace(file, target)
            sync(target.parent)
            _sync_parents(target.parent)

    def rename(self, name: str, new: str) -> None:
        with self._explained():
            os.replace(self._root / name, self._root / new)
            sync((self._root / new).parent)

    def remove(self, name: str) -> None:
        with self._explained(), contextlib.suppress(FileNotFoundError):
            os.unlink(self._root / name)

    # -- folders with a mark ---------------------------------------------------------------------------------------

    def locate(self, name: str) -> Path:
        return self._root / name

    def begin(self, name: str) -> Path:
        begun = self._root / f".{name}.{os.getpid()}{_TEMPORARY}"
        with self._explained():
            self._root.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir(mode=0o700)
        return begun

    def stage(self, name: str) -> Path:
        return self.begin(f"{name}.files")

    def save(self, begun: Path, name: str, write: Callable[[IO[bytes]], _T]) -> _T:
        with self._explained(), open(begun / name, "xb", buffering=0) as file:
            result = write(file)
            os.fsync(file.fileno())
        return result

    def complete(self, begun: Path, name: str, mark: str, content: bytes) -> None:
        self.save(begun, mark, lambda file: Hashing(file).write(content))
        with self._explained():
            for base, _, _ in os.walk(begun, topdown=False):
                sync(base)
            begun.rename(self._root / name)
            sync(self._root)
            _sync_parents(self._root)

    def discard(self, begun: Path, name: str, mark: str) -> None:
        shutil.rmtree(begun, ignore_errors=True)

    def remove_folder(self, name: str, mark: str) -> None:
        hidden = self._root / f".{name}.{os.getpid()}{_DELETED}"
        with self._explained():
            (self._root / name).rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def sweep_folders(self, prefix: str, mark: str) -> None:
        for name in self.entries():
            if name.startswith(f".{prefix}") and name.endswith((_TEMPORARY, _DELETED)):
                shutil.rmtree(self._root / name, ignore_errors=True)
            elif name.startswith(_INCOMPLETE) and not name.startswith(self._prefix):
                self.remove(name)

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        return explained(self.location, self._explain)


def _kind(entry: os.DirEntry[str]) -> str:
    return "file" if entry.is_file() else "directory" if entry.is_dir() else "other"


def _make(folder: Path) -> None:
    """Create a folder.

    :raises PermissionError: it cannot exist there, for example below ``/proc``
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(f"{error.filename} cannot be created there") from error


def sync(path: Path | str) -> None:
    """Make the content of a file, or the renames in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@lru_cache(maxsize=16)
def _sync_parents(folder: Path) -> None:
    """Make a folder itself durable, once: it and its parents may be as new as the file in it."""
    for parent in folder.absolute().parents:
        # A folder that this account cannot read is not its own.
        with contextlib.suppress(OSError):
            sync(parent)


def readable_mode() -> int:
    """Return the mode of a new file that other accounts may read as far as the umask allows."""
    return 0o666 & ~_umask()


def _umask() -> int:
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
