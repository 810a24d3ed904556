"""Content of a disk after a power cut: a recorded sequence of writes, replayed up to any point.

The model is the strictest that POSIX allows: data of a file survives once the file was fsynced after the write, and a
change of a folder's entries (created, renamed or removed) once the folder was fsynced.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("write_recorder.c")
_HEADER = struct.Struct("<IIIIQ")


@dataclass(frozen=True)
class Step:
    """One recorded call. ``kind``: W(rite), S(ync), T(runcate), C(reate), R(ename), U(nlink), M(kdir), F(ork next)."""

    kind: str
    pid: int
    path: str
    data: bytes
    #: Offset of the write, or the new length.
    offset: int


@dataclass
class Node:
    """A file or folder, as processes see it and as it is on the disk."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    names: dict[str, Node] | None = None
    synced_names: dict[str, Node] = field(default_factory=dict)


class Recorder:
    """Records the writes of processes below a folder.

    :param folder: for the recorder's own files
    :param root: folder whose writes are recorded
    """

    def __init__(self, folder: Path, root: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("a C compiler is needed to record writes")
        folder.mkdir(parents=True, exist_ok=True)
        library, self.log, self.root = folder / "recorder.so", folder / "record", root
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        self.env = {"LD_PRELOAD": str(library), "RECORD_ROOT": str(root), "RECORD_LOG": str(self.log)}

    def steps(self) -> list[Step]:
        """Return the calls recorded so far."""
        raw, at, found = self.log.read_bytes(), 0, []
        while at < len(raw):
            kind, pid, path, data, offset = _HEADER.unpack_from(raw, at)
            at += _HEADER.size
            name, content = raw[at : at + path].decode(), raw[at + path : at + path + data]
            found.append(Step(chr(kind), pid, name, content, offset))
            at += path + data
        return found


class Disk:
    """Content of a folder after some steps."""

    def __init__(self, root: Path) -> None:
        self.root, self.top = str(root), Node(names={})

    def apply(self, step: Step) -> None:
        """Apply a recorded call. The root itself always exists."""
        if step.kind in "MR" and step.path == self.root:
            return
        match step.kind:
            case "W":
                file = self._node(step.path)
                missing = step.offset - len(file.content)
                file.content.extend(b"\0" * missing)
                file.content[step.offset : step.offset + len(step.data)] = step.data
            case "T":
                file = self._node(step.path)
                del file.content[step.offset :]
                file.content.extend(b"\0" * (step.offset - len(file.content)))
            case "S":
                node = self._node(step.path)
                if node.names is None:
                    node.synced = bytes(node.content)
                else:
                    node.synced_names = dict(node.names)
            case "C":
                self._node(step.path)
            case "M":
                folder, name = self._parent(step.path)
                folder.setdefault(name, Node(names={}))
            case "R":
                folder, name = self._parent(step.path)
                target, new = self._parent(step.data.decode())
                target[new] = folder.pop(name)
            case "U":
                folder, name = self._parent(step.path)
                folder.pop(name, None)

    def image(self, target: Path) -> Path:
        """Write the surviving files into a new folder and return it."""
        _write(self.top, target)
        return target

    def _node(self, path: str) -> Node:
        if path.rstrip("/") == self.root:
            return self.top
        folder, name = self._parent(path)
        return folder.setdefault(name, Node())

    def _parent(self, path: str) -> tuple[dict[str, Node], str]:
        *folders, name = os.path.relpath(path, self.root).split("/")
        names = self.top.names
        for part in folders:
            assert names is not None
            # Folders from before the recording exist.
            names = names.setdefault(part, Node(names={})).names
        assert names is not None
        return names, name


def cuts(root: Path, steps: Sequence[Step]) -> Iterator[tuple[int, Disk]]:
    """Yield (number of steps, disk) for a power cut right after each fsync.

    Between two fsyncs nothing else survives.
    """
    disk = Disk(root)
    for number, step in enumerate(steps, start=1):
        if step.kind != "F":
            disk.apply(step)
        if step.kind == "S":
            yield number, disk


def _write(node: Node, path: Path) -> None:
    if node.names is None:
        path.write_bytes(node.synced)
        path.chmod(0o600)
        return
    path.mkdir(mode=0o700, exist_ok=True)
    for name, child in node.synced_names.items():
        _write(child, path / name)
