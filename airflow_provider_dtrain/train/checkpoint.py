"""Checkpoints on disk: complete or not there at all.

A checkpoint is a folder ``step-<step>`` with ``state.pt``, ``rng.pt``, now and then ``pending.pt``, and
``metadata.json``. It is written under a
name that starts with a dot, fsynced and renamed. ``metadata.json`` carries size and sha256 of each file and a
checksum of itself. Files are loaded with ``weights_only=True``: no pickle of a checkpoint is ever run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError

log = logging.getLogger(__name__)

FORMAT = 1
METADATA = "metadata.json"
STATE = "state.pt"
RNG = "rng.pt"
#: What each rank has of an unfinished group of batches; only when there is something.
PENDING = "pending.pt"
#: How names of folders end that are no checkpoints.
TEMPORARY = ".tmp"
DELETED = ".deleted"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    path: Path
    step: int
    #: sha256 of ``metadata.json``, which holds the digests of the other files.
    sha256: str
    size_bytes: int
    metadata: Mapping[str, Any]
    #: Where it lies when ``path`` is only a copy of it, e.g. in a bucket.
    url: str | None = None

    @property
    def where(self) -> str:
        """URL or path, for people and the control side."""
        return self.url or str(self.path)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Validation metrics at this step; empty when there are none."""
        return self.metadata.get("metrics") or {}


def write(
    folder: Path, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any], *, final: Path | None = None
) -> Checkpoint:
    """Return the checkpoint, once it is whole and on the disk.

    :param folder: where checkpoints of this trial are kept
    :param contents: file name -> what ``torch.save`` is to write
    :param facts: goes into the metadata
    :param final: its path; default: :func:`free_name`
    :raises CheckpointError: something cannot be loaded without pickle, or the disk refuses
    """
    temporary = folder / f".step-{step}.{os.getpid()}{TEMPORARY}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
        files = {name: _save(temporary / name, value) for name, value in contents.items()}
        text = metadata_text(step, facts, files)
        _write_synced(temporary / METADATA, text)
        sync_folder(temporary)
        final = final or free_name(folder, step)
        temporary.rename(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"The checkpoint of step {step} cannot be written below {folder}: {error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return parse(text, final)


def metadata_text(step: int, facts: Mapping[str, Any], files: Mapping[str, Any]) -> bytes:
    """Return what ``metadata.json`` holds.

    :param files: name -> size and sha256
    """
    metadata = {"format": FORMAT, "step": step, **facts, "files": dict(files)}
    metadata["checksum"] = _checksum(metadata)
    return json.dumps(metadata, indent=1).encode()


def read(path: Path) -> Checkpoint:
    """Return a checkpoint's description; its files are not looked at.

    :raises DamagedCheckpointError: the metadata is missing or not what was written
    """
    try:
        text = (path / METADATA).read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({error})") from error
    return parse(text, path)


def parse(text: bytes, path: Path, url: str | None = None) -> Checkpoint:
    """Return the description that the text of a ``metadata.json`` gives.

    :param path: folder that the files are in, or will be
    :param url: where the checkpoint lies when it is not on this machine
    :raises DamagedCheckpointError: the text is not what was written
    """
    try:
        metadata = json.loads(text)
        checksum, files = metadata.pop("checksum"), metadata["files"]
        step, size = int(metadata["step"]), sum(int(file["size_bytes"]) for file in files.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({error})") from error
    if checksum != _checksum(metadata):
        raise DamagedCheckpointError(f"{path.name}: {METADATA} does not match its own checksum")
    if any("/" in name or name in {"", ".", ".."} for name in files):
        raise DamagedCheckpointError(f"{path.name}: {METADATA} names files outside of the checkpoint")
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {metadata.get('format')}; this version reads format {FORMAT}.")
    return Checkpoint(path, step, hashlib.sha256(text).hexdigest(), size + len(text), metadata, url)


def verify(checkpoint: Checkpoint) -> None:
    """Check every file against its digest.

    :raises DamagedCheckpointError: a file is missing, shorter, or different
    """
    for name, expected in checkpoint.metadata["files"].items():
        try:
            found = describe(checkpoint.path / name)
        except OSError as error:
            raise DamagedCheckpointError(f"{checkpoint.path.name}: {name} cannot be read ({error})") from error
        if found != expected:
            what = next(key for key in expected if found.get(key) != expected[key])
            raise DamagedCheckpointError(
                f"{checkpoint.path.name}: {what} of {name} is {found.get(what)}, but {expected[what]} was written"
            )


def find_whole(folders: Iterable[Path], first: Path | None = None) -> Checkpoint | None:
    """Return the newest checkpoint that is undamaged; says which ones were passed over.

    :param folders: where to look
    :param first: a checkpoint, or a folder of checkpoints, to look at as well
    """
    return newest([(order(path), str(path), partial(whole, path)) for path in around(folders, first)])


def around(folders: Iterable[Path], first: Path | None) -> list[Path]:
    """Return the checkpoints in some folders, and one with its neighbours."""
    return list(candidates([*folders, *([first, first.parent] if first else [])]))


def whole(path: Path) -> Checkpoint:
    """Return a checkpoint whose files were checked.

    :raises DamagedCheckpointError: it is incomplete or differs from what was written
    """
    checkpoint = read(path)
    verify(checkpoint)
    return checkpoint


def newest(found: Sequence[tuple[Any, str, Callable[[], Checkpoint]]]) -> Checkpoint | None:
    """Return the newest checkpoint that is undamaged; says which ones were passed over.

    :param found: for each candidate a key that sorts by age, its name, and what reads and checks it
    """
    for _, name, read_whole in sorted(found, key=lambda one: one[0], reverse=True):
        try:
            return read_whole()
        except DamagedCheckpointError as error:
            log.warning("Checkpoint %s is damaged and is passed over: %s. Going back to the one before.", name, error)
    if found:
        log.warning("None of %d checkpoints is whole: training starts from step 0.", len(found))
    return None


def candidates(folders: Iterable[Path]) -> Iterable[Path]:
    """Return the folders that look like checkpoints, each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        if (folder / METADATA).is_file():
            found[folder] = None
        elif folder.is_dir():
            found.update((path, None) for path in folder.glob("step-*") if path.is_dir())
    return found


def age(name: str) -> tuple[int, int]:
    """Return step and count that a name holds; -1 for a step that it does not hold."""
    digits, _, count = name.rpartition("step-")[2].partition(".")
    digits = digits.partition("-")[0]
    return (int(digits) if digits.isdigit() else -1), (int(count) if count.isdigit() else 1)


def order(path: Path) -> tuple[int, int, float]:
    """Return a key that sorts by step, then by the count of equal steps, then by time of writing."""
    step, count = age(path.name)
    try:
        written = (path / METADATA).stat().st_mtime
    except OSError:
        written = 0.0
    return (step if step >= 0 else _recorded_step(path)), count, written


def _recorded_step(path: Path) -> int:
    try:
        return read(path).step
    except CheckpointError:
        return -1


def free_name(folder: Path, step: int) -> Path:
    """Return a path that no checkpoint has."""
    name, count = folder / f"step-{step:08d}", 1
    while name.exists():
        count += 1
        name = folder / f"step-{step:08d}.{count}"
    return name


class Hashing:
    """A file to write to that knows size and sha256 of what it was given.

    :param file: takes the bytes
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self._size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        # Both let other threads run meanwhile.
        self._digest.update(view)
        rest = view
        while rest.nbytes:
            rest = rest[self._file.write(rest) :]
        self._size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Hand on what the file keeps back."""
        self._file.flush()

    def description(self) -> dict[str, Any]:
        """Return size and sha256 as the metadata has them."""
        return {"size_bytes": self._size, "sha256": self._digest.hexdigest()}


def dump(value: Any, file: IO[bytes]) -> dict[str, Any]:
    """Write a value as ``torch.save`` does; return size and sha256 of what was written.

    :raises OSError: the file refuses
    """
    import torch

    hashing: Any = _Remembering(file)
    failed = None
    try:
        torch.save(value, hashing)
    except (RuntimeError, OSError) as error:
        failed = hashing.error or error
    if failed is not None:
        # torch reports a full disk as a RuntimeError of its own.
        raise failed
    return dict(hashing.description())


class _Remembering(Hashing):
    """Keeps the error that torch's writer replaces by one of its own."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def _save(path: Path, value: Any) -> dict[str, Any]:
    with open(path, "xb", buffering=0) as file:
        description = dump(value, file)
        os.fsync(file.fileno())
    refuse_unsafe_file(path)
    return description


def refuse_unsafe_file(file: Any) -> None:
    """Raise unless ``torch.load(weights_only=True)`` can read a file.

    :param file: a path, or an open file
    :raises CheckpointError: names what it holds
    """
    import torch

    # Reads the few bytes that are no tensors. Older versions of torch do not have it.
    find_unsafe = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    unsafe = find_unsafe(file if hasattr(file, "read") else str(file)) if find_unsafe else []
    if unsafe:
        raise CheckpointError(
            f"The state of a prepared object holds {', '.join(sorted(unsafe))}, which a checkpoint may not hold: it "
            "could not be loaded without running a pickle. Keep tensors, numbers, texts, lists and dicts in it."
        )


def describe(path: Path) -> dict[str, Any]:
    """Return size and sha256 of a file as the metadata has them."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"size_bytes": size, "sha256": digest.hexdigest()}


def _checksum(metadata: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in metadata.items() if k != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
