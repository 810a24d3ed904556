"""Output folder of a batch inference: a folder that all ranks see, or a place in an object store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_dtrain.train.checkpoint.disk import sync_folder
from airflow_provider_dtrain.train.checkpoint.storage import is_url
from airflow_provider_dtrain.train.checkpoint.storage_options import file_system
from airflow_provider_dtrain.train.errors import OutputFolderError, UnusableFolderError

#: Folder of the ledger, and of everything that is not published yet.
OWN = "_dtrain"
#: Folder below it for files that are not complete.
TEMPORARY = f"{OWN}/incomplete"


class OutputFolder(Protocol):
    """Files below one place. Each exists completely or not at all. Names are relative, with ``/``."""

    #: Path or URL, as users know it.
    location: str
    #: True: files can be renamed. False: an object keeps the name under which it was uploaded.
    renames: bool

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files directly in a folder, read anew. Empty if there is none."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def read_all(self, names: list[str]) -> dict[str, bytes]:
        """Return the contents of files by name. A file that does not exist is left out."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, durably."""

    def create(self, name: str, content: bytes) -> bool | None:
        """Write a small file unless it exists. Return whether it was written.

        None: this place cannot tell, and nothing was written.
        """

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """Yield the path of a file to write to, which :meth:`deliver` takes. It is removed afterwards."""

    def deliver(self, file: Path, name: str) -> None:
        """Make a complete local file one of the folder, durably: by a rename, or by one upload."""

    def rename(self, name: str, new: str) -> None:
        """Rename a file, durably. Only where :attr:`renames` is true."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def sweep(self) -> None:
        """Remove the incomplete files of other runs. Only the owner calls it."""

    def strangers(self) -> list[str]:
        """Return the names of everything outside the ledger's folder, at most 100."""


class LocalFolder:
    """Output folder of a file system that the hosts share, or of the only host.

    :param run: name of the run, which begins the names of its incomplete files
    """

    renames = True

    def __init__(self, path: str, run: str = "") -> None:
        self.location = os.path.abspath(path)
        self._root = Path(self.location)
        self._prefix = f"{run}."

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files directly in a folder."""
        with explained(self.location):
            try:
                return sorted(entry.name for entry in os.scandir(self._root / folder) if entry.is_file())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None."""
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None."""
        with explained(self.location):
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                return None

    def read_all(self, names: list[str]) -> dict[str, bytes]:
        """Return the contents of files by name."""
        found = {name: self.read(name) for name in names}
        return {name: content for name, content in found.items() if content is not None}

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, durably."""
        with self.scratch() as file:
            with explained(self.location):
                file.write_bytes(content)
            self.deliver(file, name)

    def create(self, name: str, content: bytes) -> bool | None:
        """Write a small file unless it exists. Return whether it was written."""
        with self.scratch() as file, explained(self.location):
            file.write_bytes(content)
            _sync(file)
            try:
                # A link, unlike a rename, fails when the name exists, also over NFS.
                os.link(file, self._root / name)
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield the path of a new file in the folder's own file system."""
        with explained(self.location):
            temporary = self._root / TEMPORARY
            _make(temporary)
            descriptor, name = tempfile.mkstemp(dir=str(temporary), prefix=self._prefix)
            os.close(descriptor)
            # mkstemp lets only this account read it, whatever the umask.
            os.chmod(name, readable_mode())
        try:
            yield Path(name)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)

    def deliver(self, file: Path, name: str) -> None:
        """Sync a file and rename it."""
        target = self._root / name
        with explained(self.location):
            _sync(file)
            _make(target.parent)
            os.replace(file, target)
            sync_folder(target.parent)

    def rename(self, name: str, new: str) -> None:
        """Rename a file, durably."""
        with explained(self.location):
            os.replace(self._root / name, self._root / new)
            sync_folder((self._root / new).parent)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with explained(self.location), contextlib.suppress(FileNotFoundError):
            os.unlink(self._root / name)

    def sweep(self) -> None:
        """Remove the incomplete files of other runs, which have ended."""
        for name in self.names(TEMPORARY):
            if not name.startswith(self._prefix):
                self.remove(f"{TEMPORARY}/{name}")

    def strangers(self) -> list[str]:
        """Return the names of everything outside the ledger's folder, at most 100."""
        with explained(self.location):
            try:
                return sorted(name for name in os.listdir(self._root) if name != OWN)[:100]
            except FileNotFoundError:
                return []


class RemoteFolder:
    """Output folder in an object store. Each object is uploaded once, under a name that no other run uses.

    :param storage: ``checkpoint_storage`` of the configuration, for credentials
    """

    renames = False

    def __init__(self, url: str, storage: Mapping[str, Any]) -> None:
        self.location = url.rstrip("/")
        self._files = file_system(url, storage)
        self._root = str(self._files._strip_protocol(self.location)).rstrip("/")

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the objects directly below a prefix, listed anew."""
        return sorted(name for name, kind in self._entries(folder) if kind == "file" and name)

    def _entries(self, folder: str) -> list[tuple[str, str]]:
        place = f"{self._root}/{folder}".rstrip("/")
        with explained(self.location, Exception):
            # Another process writes here, and some file systems of fsspec remember listings.
            self._files.invalidate_cache()
            try:
                found = self._files.ls(place, detail=True)
            except FileNotFoundError:
                return []
        inside = [one for one in found if str(one["name"]).rstrip("/").startswith(place + "/")]
        return [(str(one["name"]).rstrip("/")[len(place) + 1 :], one["type"]) for one in inside]

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, or None."""
        with explained(self.location, Exception):
            self._files.invalidate_cache()
            try:
                return int(self._files.info(f"{self._root}/{name}")["size"])
            except FileNotFoundError:
                return None

    def read(self, name: str) -> bytes | None:
        """Return the content of an object, or None."""
        with explained(self.location, Exception):
            try:
                return bytes(self._files.cat_file(f"{self._root}/{name}"))
            except FileNotFoundError:
                return None

    def read_all(self, names: list[str]) -> dict[str, bytes]:
        """Return the contents of objects by name, read in parallel where the file system can."""
        if not names:
            return {}
        with explained(self.location, Exception):
            found = self._files.cat([f"{self._root}/{name}" for name in names], on_error="return")
        if isinstance(found, bytes):
            found = {f"{self._root}/{names[0]}": found}
        contents = {name: found.get(f"{self._root}/{name}") for name in names}
        return {name: content for name, content in contents.items() if isinstance(content, bytes)}

    def write(self, name: str, content: bytes) -> None:
        """Write a small object."""
        with explained(self.location, Exception):
            self._files.pipe_file(f"{self._root}/{name}", content)

    def create(self, name: str, content: bytes) -> bool | None:
        """Return None, because not every object store can write on condition."""
        return None

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield the path of a new file of this host."""
        folder = tempfile.mkdtemp(prefix="dtrain-part-", dir=os.environ.get("DTRAIN_RUN_DIR") or None)
        try:
            yield Path(folder, "part")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def deliver(self, file: Path, name: str) -> None:
        """Upload a file: the object appears when the upload is complete."""
        with explained(self.location, Exception):
            self._files.put_file(str(file), f"{self._root}/{name}")

    def rename(self, name: str, new: str) -> None:
        """Raise, because an object store copies instead of renaming."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        with explained(self.location, Exception), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def sweep(self) -> None:
        """Do nothing: an upload that was cut leaves no object."""

    def strangers(self) -> list[str]:
        """Return the names of everything outside the ledger's prefix, at most 100."""
        return sorted({name.partition("/")[0] for name, _ in self._entries("")} - {OWN, ""})[:100]


def open_folder(path: str, storage: Mapping[str, Any], run: str) -> OutputFolder:
    """Return the output folder at a path or URL.

    :param storage: ``checkpoint_storage`` of the configuration, for credentials
    :param run: name of the run
    """
    return RemoteFolder(path, storage) if is_url(path) else LocalFolder(path, run)


@contextlib.contextmanager
def explained(location: str, errors: type[Exception] = OSError) -> Iterator[None]:
    """Turn an error of a file system into one that names the folder.

    :param errors: errors of the file system; clients of object stores have exceptions of their own
    """
    try:
        yield
    except (FileNotFoundError, OutputFolderError):
        raise
    except errors as error:
        kind = UnusableFolderError if isinstance(error, (PermissionError, NotADirectoryError)) else OutputFolderError
        raise kind(f"The output folder {location} cannot be used: {error}.") from error


def _make(folder: Path) -> None:
    """Create a folder.

    :raises PermissionError: it cannot exist there, for example below ``/proc``
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(f"{error.filename} cannot be created there") from error


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def readable_mode() -> int:
    """Return the mode of a new file that other accounts may read as far as the umask allows."""
    return 0o666 & ~_umask()


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
