"""Files of an input: below a folder, by a pattern or by name, on this host or behind a URL."""

from __future__ import annotations

import errno
import glob
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from airflow_provider_dtrain.train.errors import InputError, InputUnavailableError, TrainError
from airflow_provider_dtrain.train.files.file_systems import file_system, is_url
from airflow_provider_dtrain.train.inference.shards import Shard
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Names that tools give to their own files, such as ``_SUCCESS`` and ``.crc``. They are not input.
HIDDEN = ("_", ".")
#: Keys under which fsspec file systems keep a checksum of an object, and the time of its last change.
CHECKSUM_KEYS = ("ETag", "etag", "md5Hash", "content_md5")
TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")
#: Error numbers of a file system whose server, network or process is overloaded or away.
_PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
        *(errno.EREMOTEIO, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)


@dataclass(frozen=True)
class SourceFile:
    """One file of the input."""

    #: Path on this host, or URL.
    path: str
    size: int
    #: The object's ETag, else the time of the last change; empty if the storage has neither.
    version: str
    #: Whether the version is an ETag. Times are not compared between hosts, which may have copies of a file.
    is_checksum: bool = False

    def to_dict(self) -> JsonObject:
        """Return the file as plain JSON, for the input's identity."""
        return {"path": self.path, "size": self.size, "version": self.version}

    @property
    def content(self) -> str:
        """Version that all hosts agree about."""
        return f"{self.size} {self.version}" if self.is_checksum else str(self.size)


@dataclass(frozen=True)
class InputPath:
    """The files of one entry of ``inputs.path``."""

    path: str
    files: tuple[SourceFile, ...]
    #: Files of a folder, whose format may not be the input's. A pattern or a name chooses files itself.
    is_folder: bool


class Sources:
    """Lists and opens files.

    :param storage: ``checkpoint_storage`` of the configuration, whose credentials serve URLs of the same kind
    """

    def __init__(self, storage: Mapping[str, Any]) -> None:
        self._storage = storage
        self._systems: dict[str, Any] = {}

    def entry(self, path: str) -> InputPath:
        """Return the files of a path, URL or pattern, sorted by name.

        :raises InputError: it does not exist, or cannot be listed
        """
        try:
            is_folder, files = self._remote(path) if is_remote(path) else self._local(local(path))
        except TrainError:
            raise
        except Exception as error:
            raise unreadable(path, f"inputs.path {path} cannot be listed", error) from error
        return InputPath(path, tuple(sorted(set(files), key=lambda one: one.path)), is_folder)

    def file(self, path: str) -> SourceFile:
        """Return the current state of a file.

        :raises InputError: the file is missing or cannot be read
        """
        try:
            if is_remote(path):
                return _remote_file(path, self.system(path).info(path))
            return _local_file(local(path))
        except TrainError:
            raise
        except Exception as error:
            raise unreadable(path, f"{path} cannot be read", error) from error

    def check_version(self, shard: Shard) -> None:
        """Check that a shard's file is the one that was planned.

        :raises InputError: it is missing or was changed
        """
        if self.file(shard.source).content != shard.details.get("version"):
            raise InputError(f"{shard.source} has changed since the inference began. Start the run again.")

    def open(self, path: str, *, is_random: bool = False) -> BinaryIO:
        """Open a file for reading.

        :param is_random: the reader requests ranges, which a cache of the following bytes would multiply
        """
        if is_remote(path):
            cache = "none" if is_random else "readahead"
            opened: BinaryIO = self.system(path).open(path, "rb", cache_type=cache)
            return opened
        return open(local(path), "rb")

    def contents(self, paths: list[str]) -> list[bytes | InputError]:
        """Return the contents of files, objects of a bucket concurrently, or the errors of those without any."""
        if paths and is_remote(paths[0]) and len({one.partition("://")[0] for one in paths}) == 1:
            system = self.system(paths[0])
            found = system.cat([system._strip_protocol(one) for one in paths], on_error="return")
            return [_content(one, found.get(system._strip_protocol(one))) for one in paths]
        return [self._content(one) for one in paths]

    def system(self, url: str) -> Any:
        """Return the fsspec file system of a URL."""
        scheme = url.partition("://")[0]
        if scheme not in self._systems:
            self._systems[scheme] = file_system(url, self._storage, purpose="Input files")
        return self._systems[scheme]

    def _content(self, path: str) -> bytes | InputError:
        try:
            with self.open(path) as file:
                return file.read()
        except Exception as error:
            return unreadable(path, f"{path} cannot be read", error)

    def _local(self, path: str) -> tuple[bool, list[SourceFile]]:
        if os.path.isdir(path):
            return True, [_local_file(one) for one in _walk(path)]
        if os.path.exists(path):
            return False, [_local_file(path)]
        matches = [one for one in glob.glob(path, recursive=True) if not _is_hidden(one, path)]
        if not matches:
            raise InputError(f"inputs.path {path} does not exist on this host, and matches no file as a pattern.")
        return False, [_local_file(one) for match in matches for one in _below(match)]

    def _remote(self, url: str) -> tuple[bool, list[SourceFile]]:
        system = self.system(url)
        # A listing that this process has kept would miss newer files.
        system.invalidate_cache()
        root = system._strip_protocol(url)
        is_pattern = glob.has_magic(url) and not system.exists(root)
        found = dict(system.glob(url, detail=True)) if is_pattern else _named_or_below(system, root)
        for path, facts in list(found.items()):
            if facts["type"] == "directory":
                del found[path]
                found.update(system.find(path, detail=True))
        visible = {path: facts for path, facts in found.items() if not _is_hidden(path, root) and _is_object(facts)}
        if not found:
            raise InputError(f"inputs.path {url} does not exist, or no file is below it.")
        is_folder = not is_pattern and list(found) != [root]
        return is_folder, [_remote_file(system.unstrip_protocol(path), facts) for path, facts in visible.items()]


def is_remote(path: str) -> bool:
    """Return whether fsspec reaches the path. URLs with ``file://`` are local paths."""
    return is_url(path) and not path.startswith("file://")


def local(path: str) -> str:
    """Return the local path of a path or ``file://`` URL."""
    return os.path.expanduser(path[len("file://") :] if path.startswith("file://") else path)


def reason(error: BaseException) -> str:
    """Return the type and the message of an error, in one line."""
    text = "".join(char if char.isprintable() else "?" for char in " ".join(str(error).split())[:300])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def no_rows(files: Sequence[SourceFile]) -> InputError:
    """Return the error of an input whose files have no row."""
    rest_text = {1: " has", 2: " and another file have"}.get(len(files), f" and {len(files) - 1} more files have")
    return InputError(f"The input is empty: {files[0].path}{rest_text} no row.")


def unreadable(path: str, message: str, error: BaseException) -> InputError:
    """Return the error of an input that cannot be read.

    :param message: subject and verb of its message
    :return: :class:`InputUnavailableError` if the storage may answer another attempt
    """
    kind = InputUnavailableError if _may_pass(path, error) else InputError
    return kind(f"{message}: {reason(error)}")


def _may_pass(path: str, error: BaseException) -> bool:
    """Return whether an error comes from a storage that does not answer.

    pyarrow reports damaged files as OSError without a number, and as ValueError. Clients of object stores have errors
    of their own for everything that is not known.
    """
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError)):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING or is_remote(path)
    return is_remote(path) and not type(error).__module__.startswith("pyarrow")


def _content(path: str, found: Any) -> bytes | InputError:
    if isinstance(found, bytes):
        return found
    if isinstance(found, BaseException):
        return unreadable(path, f"{path} cannot be read", found)
    return InputError(f"{path} cannot be read: the storage returned no content")


def _below(match: str) -> Iterable[str]:
    return _walk(match) if os.path.isdir(match) else (match,)


def _walk(folder: str) -> Iterator[str]:
    """Yield the visible files below a folder. Links are followed, but each folder is read once."""
    seen: set[tuple[int, int]] = set()
    todo = [folder]
    while todo:
        current = todo.pop()
        facts = os.stat(current)
        if (facts.st_dev, facts.st_ino) in seen:
            log.warning("Input folder %s was already read under another name. It is skipped.", current)
            continue
        seen.add((facts.st_dev, facts.st_ino))
        for one in sorted(os.scandir(current), key=lambda one: one.name, reverse=True):
            if one.name.startswith(HIDDEN):
                continue
            if one.is_dir():
                todo.append(one.path)
            elif one.is_file() or one.is_symlink():
                yield one.path


def _is_hidden(path: str, pattern: str) -> bool:
    """Return whether a name below the fixed start of a pattern is hidden, unless the pattern asks for such names."""
    parts, wanted = path.split("/"), pattern.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(wanted) if glob.has_magic(part)), len(wanted))
    if any(part.startswith(HIDDEN) for part in wanted[fixed:]):
        return False
    return any(part.startswith(HIDDEN) for part in parts[fixed:])


def _is_object(facts: Mapping[str, Any]) -> bool:
    """Return whether an entry is no mark of an empty folder."""
    return facts["type"] == "file" and not (str(facts["name"]).endswith("/") and not facts.get("size"))


def _named_or_below(system: Any, root: str) -> dict[str, Any]:
    try:
        facts = system.info(root)
    except FileNotFoundError:
        return dict(system.find(root, detail=True))
    return {root: facts} if facts["type"] == "file" else dict(system.find(root, detail=True))


def _local_file(path: str) -> SourceFile:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(f"The name of the file {path!a} is not valid UTF-8. Rename it.") from None
    try:
        facts = os.stat(path)
    except OSError as error:
        raise unreadable(path, f"{path} cannot be read", error) from error
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path} is no regular file.")
    return SourceFile(path, facts.st_size, str(facts.st_mtime_ns))


def _remote_file(url: str, facts: Mapping[str, Any]) -> SourceFile:
    checksum = next((facts[key] for key in CHECKSUM_KEYS if facts.get(key)), None)
    time = next((facts[key] for key in TIME_KEYS if facts.get(key)), "")
    version = str(checksum or time).strip('"')
    return SourceFile(url, int(facts.get("size") or 0), version, is_checksum=checksum is not None)
