"""Files that the ranks of a run wrote or changed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from ..fields import parse_object
from ..file_access import names_in, read_bytes, read_text, write_json
from ..limits import OUTPUT_CHECKED, OUTPUT_DEPTH, OUTPUT_PATH, SETTLE_WAIT_S, SETTLED_S
from ..machine.processes import all_procs, descendants, find_process
from ..names import LIBRARY_FOLDERS, OUTPUT_FOLDERS, OUTPUTS_END, Json
from ..refusal import Refused
from .archives import real_parent
from .layout import RunFolder


class WrittenFile(NamedTuple):
    """A file that ranks wrote or changed."""

    #: Relative to the run's folder.
    path: str
    size: int
    mtime: float
    #: Text that differs after each change.
    version: str


def version_of(found: os.stat_result) -> str:
    """Return a version of a file that differs after each change."""
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}"


def output_file(path: str, found: os.stat_result) -> WrittenFile:
    """Return the record of a file, with its time clipped to the range of archives."""
    return WrittenFile(path, found.st_size, min(max(0.0, found.st_mtime), float(1 << 33)), version_of(found))


def walk_files(folder: RunFolder, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of all but folders below a folder of a run, without the caches of Python.

    A folder that cannot be read, or is nested too deep for outputs, is yielded in place of its content.
    """
    if not os.path.isdir(folder.file(name)) or os.path.islink(folder.file(name)):
        return
    waiting = [name]
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(OSError):
            status = os.lstat(folder.file(path))
            is_shallow = path.count("/") < OUTPUT_DEPTH
            is_folder = stat.S_ISDIR(status.st_mode)
            if not (is_folder and is_shallow and os.access(folder.file(path), os.R_OK | os.X_OK)):
                yield path, status
            elif os.path.basename(path) != "__pycache__":
                waiting += [os.path.join(path, one) for one in sorted(os.listdir(folder.file(path)), reverse=True)]


def note_baseline(folder: RunFolder) -> None:
    """Record the files of the user's code, once. A file that differs later was written by the ranks."""
    if not folder.has("baseline.json"):
        found = {path: version_of(status) for path, status in walk_files(folder, "work")}
        write_json(folder.file("baseline.json"), found, durable=False)


def take_carried(folder: RunFolder, name: str | None) -> None:
    """Move the files of the previous attempt to their places, over those of the user's code."""
    root = folder.file(f"carried-{name}")
    for base, _, files in os.walk(root) if name is not None else ():
        for one in files:
            parts = os.path.relpath(os.path.join(base, one), root).split(os.sep)
            # A path that became a link or a folder in the user's code stays as it is.
            with contextlib.suppress(Refused, IsADirectoryError, NotADirectoryError):
                if parts[0] in OUTPUT_FOLDERS:
                    os.replace(os.path.join(base, one), os.path.join(real_parent(folder.path, parts, one), parts[-1]))
    for entry in names_in(folder.path):
        if entry.startswith("carried-"):
            shutil.rmtree(folder.file(entry), ignore_errors=True)


class OutputSender:
    """Sender of the files that ranks wrote or changed, as a tar whose last member lists its content.

    :param known: path -> version of the files that the control side has
    :param limit_bytes: largest total size of the files
    :param library_only: send only what the training library writes: traces of the profiler, and media
    """

    def __init__(
        self, folder: RunFolder, known: Json, limit_bytes: int, limit_files: int, *, library_only: bool = False
    ) -> None:
        self.folder = folder
        self.known = known
        self.limit_bytes = limit_bytes
        self.limit_files = limit_files
        self.folders = LIBRARY_FOLDERS if library_only else OUTPUT_FOLDERS
        #: path -> [size, mtime, version] of each file that is sent or known.
        self.files: dict[str, list[Any]] = {}
        self.unsettled: list[str] = []
        self.left_out: list[tuple[int, str]] = []
        #: Number of entries that are not sent: links, sockets, odd paths, unreadable ones, those beyond the limits.
        self.more = 0
        self.total = 0

    def send(self, target: IO[bytes]) -> None:
        """Write the archive."""
        with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            waiting = [file for file in self.chosen() if not self._send(archive, file, is_last=False)]
            deadline = time.monotonic() + SETTLE_WAIT_S
            while waiting:
                is_last = time.monotonic() > deadline
                if not is_last:
                    time.sleep(0.25)
                waiting = [file for file in waiting if not self._send(archive, file, is_last=is_last)]
            content = json.dumps(self.end()).encode()
            member = tarfile.TarInfo(OUTPUTS_END)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    def end(self) -> Json:
        """Return the content of the last member."""
        largest = sorted(self.left_out, reverse=True)[:3]
        left_out = {
            "files": len(self.left_out),
            "bytes": sum(size for size, _ in self.left_out),
            "largest": [path for _, path in largest],
        }
        return {"files": self.files, "unsettled": self.unsettled, "left_out": left_out, "others": self.more}

    def chosen(self) -> list[WrittenFile]:
        """Return the files up to the limits: checkpoints first, then those changed last."""
        chosen: list[WrittenFile] = []
        for file in sorted(self.found(), key=lambda file: (not file.path.startswith("checkpoints/"), -file.mtime)):
            if self.total + file.size > self.limit_bytes or len(chosen) == self.limit_files:
                self.left_out.append((file.size, file.path))
                continue
            self.total += file.size
            chosen.append(file)
        return chosen

    def refreshed(self, file: WrittenFile) -> WrittenFile:
        """Return the current record of a file, or the given one if it has outgrown the limit or is no regular file."""
        now = os.lstat(self.folder.file(file.path))
        if not stat.S_ISREG(now.st_mode) or self.total + now.st_size - file.size > self.limit_bytes:
            return file
        self.total += now.st_size - file.size
        return output_file(file.path, now)

    def found(self) -> Iterator[WrittenFile]:
        """Yield every file that did not come with the user's code."""
        baseline = parse_object(read_bytes(self.folder.file("baseline.json"), 1 << 30) or b"") or {}
        # Checkpoints on shared storage stay there.
        has_own = not (self.folder.context() or {}).get("checkpoint_dir")
        checked = 0
        for name in self.folders:
            for path, status in walk_files(self.folder, name) if has_own or name != "checkpoints" else ():
                checked += 1
                version = version_of(status)
                if checked > OUTPUT_CHECKED:
                    self.more += 1
                elif not stat.S_ISREG(status.st_mode) or not is_plain_path(path):
                    self.more += baseline.get(path) != version
                elif baseline.get(path) != version:
                    yield output_file(path, status)

    def _send(self, archive: tarfile.TarFile, file: WrittenFile, *, is_last: bool) -> bool:
        """Send a file unless it is known. Return False if the caller must try again."""
        source = None
        try:
            file = self.refreshed(file)
            is_known = self.known.get(file.path) == file.version
            if not is_known and not self._is_being_written(file):
                source = self._open(file)
            elif not is_known and not is_last:
                return False
        except FileNotFoundError:
            # Removed since the list was made.
            self.files.pop(file.path, None)
            return True
        except OSError:
            # Without access rights, or of another user. Errors of the archive itself end the role.
            self.more += 1
            return True
        if is_known or (source is not None and self._write(archive, file, source)):
            self.files[file.path] = [file.size, file.mtime, file.version]
        else:
            self.unsettled.append(file.path)
        return True

    def _open(self, file: WrittenFile) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return open(self.folder.file(file.path), "rb", opener=lambda path, _: os.open(path, flags))

    def _write(self, archive: tarfile.TarFile, file: WrittenFile, source: IO[bytes]) -> bool:
        """Send an open file and close it. Return whether it could be read and stayed unchanged meanwhile."""
        with source:
            fd = source.fileno()
            if version_of(os.fstat(fd)) != file.version:
                return False
            member = tarfile.TarInfo(file.path)
            member.size = file.size
            member.mtime = int(file.mtime)
            member.mode = 0o755 if os.fstat(fd).st_mode & 0o100 else 0o644
            padded = Padded(source)
            archive.addfile(member, padded)
            return not padded.is_broken and version_of(os.fstat(fd)) == file.version

    def _is_being_written(self, file: WrittenFile) -> bool:
        if time.time() - file.mtime > SETTLED_S:
            # Unchanged for a while: a log that is kept open, or a file without a writer.
            return False
        now = os.lstat(self.folder.file(file.path))
        return (now.st_dev, now.st_ino) in self._open_files()

    def _open_files(self) -> set[tuple[int, int]]:
        """Return device and inode of the files that processes of the run have open for writing."""
        found = set()
        parent = find_process(self.folder.supervisor())
        for proc in descendants([parent.pid], all_procs()) if parent is not None else ():
            for fd in names_in(f"/proc/{proc.pid}/fd"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    flags = (read_text(f"/proc/{proc.pid}/fdinfo/{fd}") or "").partition("flags:")[2].split()[0]
                    if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                        status = os.stat(f"/proc/{proc.pid}/fd/{fd}")
                        found.add((status.st_dev, status.st_ino))
        return found


class Padded:
    """A file that reads as zeros behind its end and after a read error, so that neither breaks the archive."""

    def __init__(self, source: IO[bytes]) -> None:
        self.source = source
        self.is_broken = False

    def read(self, count: int = -1, /) -> bytes:
        """Return exactly ``count`` bytes."""
        data = b""
        try:
            data = b"" if self.is_broken else self.source.read(count)
        except OSError:
            self.is_broken = True
        return data + bytes(max(0, count - len(data)))


def is_plain_path(path: str) -> bool:
    """Return whether a path is text that JSON, archives and other file systems accept."""
    return len(path) <= OUTPUT_PATH and path.isprintable() and path.count("/") <= OUTPUT_DEPTH
