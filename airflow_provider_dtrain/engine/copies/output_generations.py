"""Copies of a trial's outputs on this machine: whole generations, of which the newest counts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter

from airflow_provider_dtrain.engine.copies.mirror import DamagedCopyError, checked, fetched, put_in_place, read_bounded
from airflow_provider_dtrain.hosts.channel.archive_reader import pack_tree, tree_bytes

if TYPE_CHECKING:
    from airflow_provider_dtrain.hosts.channel.link import HostLink

#: Folders of a run whose files are outputs; names of other members are refused.
FOLDERS = ("checkpoints", "work")
#: Folders of traces of the profiler and of media, the only outputs of programs that use the training library.
LIBRARY_FOLDERS = TRACES, MEDIA = ("work/traces", "work/media")
#: Most files and bytes of media of earlier attempts that a trial keeps, the latest ones first.
EARLIER_FILES, EARLIER_BYTES = 1000, 256 << 20
#: Most files of one generation, and longest path of a file. The supervisor has the same limits.
FILES_LIMIT, PATH_LIMIT = 10_000, 1024
#: Most bytes of the last member that a host sends: some hundred bytes for each file.
END_LIMIT_BYTES = 32 << 20
#: Deepest nesting and most values of that member. Each file has a path and a list of three values.
_END_DEPTH, _END_VALUES = 8, 8 * FILES_LIMIT
#: Most bytes that the supervisor sends, whatever the options say.
MOST_BYTES = 16 << 30
#: Unix time of the year 10000, which no date can show.
YEAR_10000 = 253_402_300_800
_GENERATION = re.compile(r"outputs-(\d{1,9})-(\d{1,9})", re.ASCII)
_MANIFEST, _END = "manifest.json", "end.json"


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """One file of a generation."""

    size_bytes: int
    #: Unix time of the last change.
    modified_at: float
    #: Differs after each change on the host.
    version: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Files that a generation holds, and files that were left out."""

    run: str
    attempt: int
    host: str
    #: Unix time at which the host was asked.
    at: float
    #: True: the ranks had ended, so this run has no newer outputs.
    is_final: bool
    files: Mapping[str, OutputFile] = field(default_factory=dict)
    #: Files that were being written; an older copy of them is kept where there is one.
    unsettled: tuple[str, ...] = ()
    #: Files and bytes beyond the limits, and the paths of the largest.
    left_out_files: int = 0
    left_out_bytes: int = 0
    left_out: tuple[str, ...] = ()
    #: Number of links, sockets and files whose names are not text.
    others: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A complete copy."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Return the path of a file of the manifest."""
        return self.folder / name


def _output_path(path: str) -> str:
    parts = path.split("/")
    if not path.isprintable() or {"", ".", ".."} & set(parts) or parts[0] not in FOLDERS or len(parts) < 2:
        raise ValueError("it is not the path of an output")
    return path


_Path = Annotated[str, Field(max_length=PATH_LIMIT), AfterValidator(_output_path)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Time = Annotated[float, Field(ge=0, lt=YEAR_10000)]


class _LeftOut(BaseModel):
    files: _Count = 0
    bytes: _Count = 0
    largest: tuple[_Path, ...] = ()


class _End(BaseModel):
    """Last member of the outputs of a host."""

    #: Path -> size, time of the last change, version.
    files: dict[_Path, tuple[_Count, _Time, Annotated[str, Field(max_length=200)]]] = Field(max_length=FILES_LIMIT)
    unsettled: tuple[_Path, ...] = ()
    left_out: _LeftOut = _LeftOut()
    others: _Count = 0


_MANIFEST_FORM = TypeAdapter(Manifest)


class OutputCopies:
    """The generations of one trial.

    A generation gets its name once it is complete and on the disk. It is never changed. Older generations are then
    removed.

    :param folder: the trial's folder below ``checkpoint_dir``
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self, *, first_attempt: int = 0) -> Generation | None:
        """Return the newest generation, or None when there is none.

        :param first_attempt: attempts before it do not count
        """
        for _, path in sorted(self._generations(), reverse=True):
            manifest = _read_manifest(path)
            if manifest is not None and manifest.attempt >= first_attempt:
                return Generation(folder=path, manifest=manifest)
        return None

    def take(
        self,
        link: HostLink,
        manifest: Manifest,
        *,
        limit_bytes: int,
        first_attempt: int = 0,
        library_only: bool = False,
    ) -> Generation:
        """Copy the files that the ranks of a run wrote or changed since the newest generation. Blocks.

        :param manifest: run, attempt, host and time of the new generation
        :param first_attempt: attempts before it do not count
        :param library_only: copy only what the training library writes, and keep that of earlier attempts
        :raises ArchiveLimitError: the host sent more than the limit allows
        :raises DamagedCopyError: the host contradicts itself, or the archive is damaged or leads outside its folder
        """
        before = self.newest(first_attempt=first_attempt)
        limit_bytes = min(limit_bytes, MOST_BYTES)
        is_same_run = before is not None and before.manifest.run == manifest.run
        versions = (
            {path: file.version for path, file in before.manifest.files.items()} if before and is_same_run else {}
        )
        kept = _earlier_files(before, manifest.attempt) if before and library_only else {}
        left_bytes = max(0, limit_bytes - sum(file.size_bytes for file in kept.values()))
        transfer = link.outputs(
            manifest.run, known=versions, limit_bytes=left_bytes, limit_files=FILES_LIMIT, library_only=library_only
        )
        most_bytes = limit_bytes + END_LIMIT_BYTES
        with fetched(self.folder, transfer, limit_bytes=most_bytes, limit_files=FILES_LIMIT + 1) as folder:
            whole = _completed(folder, manifest, before, kept)
            # The size on the disk, because a host may announce another one.
            if (size := tree_bytes(folder)) > limit_bytes:
                raise DamagedCopyError(f"the files have {size} bytes, {limit_bytes} were allowed")
            return self._commit(folder, whole)

    def _commit(self, folder: Path, manifest: Manifest) -> Generation:
        (folder / _MANIFEST).touch(mode=0o600)
        (folder / _MANIFEST).write_bytes(_MANIFEST_FORM.dump_json(manifest))
        last = max((key for key, _ in self._generations() if key[0] == manifest.attempt), default=(0, 0))
        own = (manifest.attempt, last[1] + 1)
        target = self.folder / f"outputs-{own[0]}-{own[1]}"
        put_in_place(folder, target)
        for key, path in self._generations():
            if key < own:
                shutil.rmtree(path, ignore_errors=True)
        return Generation(folder=target, manifest=manifest)

    def _generations(self) -> list[tuple[tuple[int, int], Path]]:
        found = []
        for path in self.folder.glob("outputs-*"):
            if (match := _GENERATION.fullmatch(path.name)) is not None:
                found.append(((int(match[1]), int(match[2])), path))
        return found


def is_of_library(path: str) -> bool:
    """Return whether the training library wrote an output."""
    return path.startswith(tuple(f"{folder}/" for folder in LIBRARY_FOLDERS))


def _earlier_files(before: Generation, attempt: int) -> dict[str, OutputFile]:
    """Return the library's files of earlier attempts in a generation. Their names contain the number of the attempt."""
    files = before.manifest.files.items()
    own = f"-attempt{attempt}-"
    earlier = {path: file for path, file in files if is_of_library(path) and own not in path.rpartition("/")[2]}
    media = [path for path in earlier if path.startswith(f"{MEDIA}/")]
    left_files, left_bytes = EARLIER_FILES, EARLIER_BYTES
    for path in sorted(media, key=lambda path: earlier[path].modified_at, reverse=True):
        left_files -= 1
        left_bytes -= earlier[path].size_bytes
        if left_files < 0 or left_bytes < 0:
            del earlier[path]
    return earlier


def _completed(folder: Path, manifest: Manifest, before: Generation | None, kept: Mapping[str, OutputFile]) -> Manifest:
    """Return the manifest of a new copy, after linking unchanged files from the copy before.

    A file that was being written stays as the copy before has it, even if that is of an earlier attempt.

    :param kept: files of the copy before that stay, unless the host has sent others of their names
    """
    text = read_bounded(folder / _END, limit_bytes=END_LIMIT_BYTES, depth=_END_DEPTH, values=_END_VALUES)
    (folder / _END).unlink()
    with checked(_END):
        end = _End.model_validate_json(text, strict=True)
    sent_files = {
        path: OutputFile(size_bytes=one[0], modified_at=one[1], version=one[2]) for path, one in end.files.items()
    }
    files = {**kept, **sent_files}
    unsettled = tuple(path for path in end.unsettled if path not in files)
    for path in unsettled:
        # A part of it may have arrived.
        with contextlib.suppress(OSError):
            (folder / path).unlink()
        if before is not None and path in before.manifest.files:
            files[path] = before.manifest.files[path]
    sent = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for path, file in files.items():
        if path not in sent:
            _link(folder, path, file, before)
        elif (folder / path).lstat().st_size != file.size_bytes:
            raise DamagedCopyError(f"{path} has another size than announced")
    for path in sent - set(files):
        (folder / path).unlink()
    return replace(
        manifest,
        files=files,
        unsettled=unsettled,
        left_out_files=end.left_out.files,
        left_out_bytes=end.left_out.bytes,
        left_out=end.left_out.largest[:3],
        others=end.others,
    )


def _link(folder: Path, path: str, file: OutputFile, before: Generation | None) -> None:
    known = before.manifest.files.get(path) if before is not None else None
    if before is None or known is None or known.version != file.version:
        raise DamagedCopyError(f"{path} was not sent, and the copy before does not have it")
    if known.size_bytes != file.size_bytes:
        raise DamagedCopyError(f"{path} has {known.size_bytes} bytes in the copy before, not {file.size_bytes}")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    os.link(before.path(path), folder / path)


def _read_manifest(folder: Path) -> Manifest | None:
    try:
        return _MANIFEST_FORM.validate_json((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None


def send_outputs(link: HostLink, run: str, name: str, generation: Generation) -> None:
    """Send the files of a generation to a run's folder, from where the start moves them into place. Blocks.

    :param name: random name of this start
    """
    for folder in FOLDERS:
        if (generation.folder / folder).is_dir():
            with link.putting(run, f"carried-{name}") as outgoing:
                pack_tree(generation.folder / folder, cast("IO[bytes]", outgoing), folder)
