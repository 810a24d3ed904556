"""Checkpoints on disk, which are complete or do not exist.

A checkpoint is a folder ``step-<step>`` with ``state.pt``, ``rng.pt``, ``metadata.json``, and in some cases
``pending.pt`` and ``others.pt``. Tensors are in ``rank-*.safetensors``, with ``tensors.json`` as their index, and
``state.pt`` has their keys in their places. Checkpoints of format 1 have the tensors in ``state.pt``, and those of
format 3 have values that ``state_values`` describes. All others are of format 2.

A checkpoint is written under a name that starts with a dot, fsynced and renamed. ``metadata.json`` holds the size and
sha256 of each file, and a checksum of itself. Files are loaded with ``weights_only=True``: no pickle of a checkpoint is
ever run. A checkpoint of the kind ``files`` has the files that a program wrote itself, at any depth.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import TensorFile
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError, DamagedCheckpointError

log = logging.getLogger(__name__)

#: Format that is written, and all formats that are read.
FORMAT = 2
#: Format of checkpoints whose states have values of ``state_values``, which readers of format 2 would not restore.
VALUES_FORMAT = 3
FORMATS = (1, 2, 3)
METADATA = "metadata.json"
#: Largest metadata that is written and read: 10,000 files take 2 MB.
METADATA_LIMIT_BYTES = 16 << 20
STATE = "state.pt"
RNG = "rng.pt"
#: Gradients of each rank of an unfinished group of batches. The file exists only if there are any.
PENDING = "pending.pt"
#: States of prepared objects that differ between the ranks, for each rank. The file exists only if there are any.
OTHERS = "others.pt"
#: ``kind`` in the metadata of a checkpoint whose files a program wrote itself.
FILES = "files"
#: Suffixes of folders that are not checkpoints.
TEMPORARY = ".tmp"
DELETED = ".deleted"
_CHUNK_BYTES = 1 << 20
#: Most threads that compute checksums at once.
_MOST_READERS = 8


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    path: Path
    step: int
    #: sha256 of ``metadata.json``, which holds the digests of the other files.
    sha256: str
    size_bytes: int
    metadata: Mapping[str, Any]
    #: URL of the checkpoint when ``path`` is only a copy of it, e.g. when it is in a bucket.
    url: str | None = None

    @property
    def where(self) -> str:
        """URL or path, for users and the control side."""
        return self.url or str(self.path)

    @property
    def files(self) -> Mapping[str, Any]:
        """Size and sha256 of each file."""
        return self.metadata["files"]  # type: ignore[no-any-return]

    @property
    def is_of_files(self) -> bool:
        """True if a program wrote the files itself, so that only the program can read them."""
        return self.metadata.get("kind") == FILES

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Validation metrics at this step, empty if there are none."""
        return self.metadata.get("metrics") or {}


def begin(folder: Path, step: int) -> Path:
    """Create the folder in which a checkpoint is written before it is renamed, and return its path.

    :raises CheckpointError: the disk rejects it
    """
    temporary = folder / f".step-{step}.{os.getpid()}{TEMPORARY}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
    except OSError as error:
        raise _cannot_write(folder, step, error) from error
    return temporary


def write(
    folder: Path,
    step: int,
    contents: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    final: Path | None = None,
    temporary: Path | None = None,
    more: Callable[[], Mapping[str, Any]] | None = None,
) -> Checkpoint:
    """Write a checkpoint. Return it once it is complete and on disk.

    :param folder: folder for checkpoints of this trial
    :param contents: file name -> bytes, a :class:`TensorFile`, or an object that ``torch.save`` writes
    :param facts: entries for the metadata, also ``format`` if it is not :data:`FORMAT`
    :param final: path of the checkpoint; default: :func:`free_name`
    :param temporary: return value of :func:`begin`, if it was called
    :param more: returns the files that other ranks have written to ``temporary``, once they are on disk
    :raises CheckpointError: an object cannot be loaded without pickle, or the disk rejects the write
    """
    temporary = temporary or begin(folder, step)
    try:
        files = {name: save_file(temporary / name, value) for name, value in contents.items()}
        files.update(more() if more is not None else {})
        text = metadata_text(step, facts, files)
        _write_synced(temporary / METADATA, text)
        sync_folder(temporary)
        final = final or free_name(folder, step)
        temporary.rename(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _cannot_write(folder, step, error) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return parse(text, final)


def _cannot_write(folder: Path, step: int, error: OSError) -> CheckpointError:
    return CheckpointStorageError(f"The checkpoint of step {step} cannot be written below {folder}: {error}")


def metadata_text(step: int, facts: Mapping[str, Any], files: Mapping[str, Any]) -> bytes:
    """Return the content of ``metadata.json``.

    :param files: name -> size and sha256
    :raises CheckpointError: it is larger than any reader accepts
    """
    metadata = {"format": FORMAT, "step": step, **facts, "files": dict(files)}
    metadata["checksum"] = _checksum(metadata)
    text = json.dumps(metadata, indent=1).encode()
    if len(text) > METADATA_LIMIT_BYTES:
        raise CheckpointError(
            f"{METADATA} of step {step} may have at most {METADATA_LIMIT_BYTES} bytes, this one has {len(text)}. "
            "Report fewer metrics with the checkpoint."
        )
    return text


def read(path: Path) -> Checkpoint:
    """Return a checkpoint's description. Only its metadata is read.

    :raises DamagedCheckpointError: the metadata is missing or differs from what was written
    """
    try:
        with open(path / METADATA, "rb") as file:
            text = file.read(METADATA_LIMIT_BYTES + 1)
    except OSError as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({error})") from error
    return parse(text, path)


def parse(text: bytes, path: Path, url: str | None = None) -> Checkpoint:
    """Return the description that the text of a ``metadata.json`` gives.

    :param path: folder that the files are in, or will be in
    :param url: URL of the checkpoint when it is not on this host
    :raises DamagedCheckpointError: the text differs from what was written
    """
    try:
        if len(text) > METADATA_LIMIT_BYTES:
            raise ValueError(f"it is larger than {METADATA_LIMIT_BYTES} bytes")
        metadata = json.loads(text)
        checksum = metadata.pop("checksum")
        files = metadata["files"]
        step = int(metadata["step"])
        size = sum(_size_of(name, file) for name, file in files.items())
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({str(error)[:200]})") from error
    if checksum != _checksum(metadata):
        raise DamagedCheckpointError(f"{path.name}: {METADATA} does not match its own checksum")
    if not all(is_plain_name(name) for name in files):
        raise DamagedCheckpointError(f"{path.name}: {METADATA} names files outside of the checkpoint")
    if metadata.get("format") not in FORMATS:
        known = ", ".join(map(str, FORMATS))
        raise CheckpointError(
            f"{url or path} has format {str(metadata.get('format'))[:50]}; this version reads formats {known}. "
            "Use the version of airflow-provider-dtrain that wrote it, or a newer one."
        )
    return Checkpoint(path, step, hashlib.sha256(text).hexdigest(), size + len(text), metadata, url)


def is_plain_name(name: str) -> bool:
    """Return whether a file of a checkpoint may have this path below its folder."""
    parts = name.split("/")
    return name != METADATA and "\0" not in name and not any(part in {"", ".", ".."} for part in parts)


def write_tree(folder: Path, step: int, facts: Mapping[str, Any], final: Path) -> Checkpoint:
    """Make a folder of finished files a checkpoint. Return it once it is complete and on disk.

    :param folder: on the same file system as ``final``
    :raises CheckpointError: the disk rejects it; nothing is at ``final``
    """
    try:
        files = {}
        for base, _, names in os.walk(folder):
            for name in names:
                path = Path(base, name)
                files[path.relative_to(folder).as_posix()] = describe(path, sync=True)
        text = metadata_text(step, facts, dict(sorted(files.items())))
        _write_synced(folder / METADATA, text)
        for base, _, _ in os.walk(folder, topdown=False):
            sync_folder(Path(base))
        folder.rename(final)
        sync_folder(final.parent)
    except OSError as error:
        raise CheckpointStorageError(f"The checkpoint of step {step} cannot be written to {final}: {error}") from error
    return parse(text, final)


def _size_of(name: object, file: Mapping[str, Any]) -> int:
    """Return the size that the metadata gives for a file.

    :raises TypeError: the entry has another form than :func:`describe` writes
    """
    if file.keys() != {"size_bytes", "sha256"} or type(file["size_bytes"]) is not int or file["size_bytes"] < 0:
        raise TypeError(f"files.{name} must have size_bytes and sha256")
    return int(file["size_bytes"])


def refuse_files(checkpoint: Checkpoint) -> None:
    """Raise when the library cannot read the weights of a checkpoint, because a program wrote its files itself.

    :raises CheckpointError: names the checkpoint
    """
    if checkpoint.is_of_files:
        raise CheckpointError(
            f"The checkpoint {checkpoint.where} was written by ctx.checkpoint. Only the program that wrote its files "
            "can read them: ctx.latest_checkpoint()."
        )


def verify(checkpoint: Checkpoint) -> None:
    """Check every file against its digest. Several files are read at once.

    :raises DamagedCheckpointError: a file is missing, shorter, or different
    """
    files = checkpoint.metadata["files"]
    with ThreadPoolExecutor(max(1, min(len(files), os.cpu_count() or 1, _MOST_READERS))) as readers:
        # The first damaged file in the order of the metadata is named.
        for _ in readers.map(lambda item: _verify_file(checkpoint.path, *item), files.items()):
            pass


def _verify_file(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    try:
        found = describe(folder / name)
    except OSError as error:
        raise DamagedCheckpointError(f"{folder.name}: {name} cannot be read ({error})") from error
    if found != expected:
        what = next(key for key in expected if found.get(key) != expected[key])
        raise DamagedCheckpointError(
            f"{folder.name}: {what} of {name} is {found.get(what)}, but {expected[what]} was written"
        )


def find_whole(folders: Iterable[Path], first: Path | None = None) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None. Log the damaged ones that are skipped.

    :param folders: folders with checkpoints
    :param first: a further checkpoint, or folder of checkpoints
    """
    return newest([(order(path), str(path), partial(whole, path)) for path in around(folders, first)])


def around(folders: Iterable[Path], first: Path | None) -> list[Path]:
    """Return the checkpoints in some folders, and one checkpoint with its neighbours."""
    return list(candidates([*folders, *([first, first.parent] if first else [])]))


def whole(path: Path) -> Checkpoint:
    """Return a checkpoint after a check of its files.

    :raises DamagedCheckpointError: the checkpoint is incomplete or differs from what was written
    """
    checkpoint = read(path)
    verify(checkpoint)
    return checkpoint


def newest(found: Sequence[tuple[Any, str, Callable[[], Checkpoint]]]) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None. Log the damaged ones that are skipped.

    :param found: for each candidate: a key that sorts by age, its name, and a function that reads and checks it
    """
    for _, name, read_whole in sorted(found, key=lambda one: one[0], reverse=True):
        try:
            return read_whole()
        except DamagedCheckpointError as error:
            log.warning("Checkpoint %s is damaged and is skipped: %s. The one before it is tried.", name, error)
    return None


def candidates(folders: Iterable[Path]) -> Iterable[Path]:
    """Return the folders with the names or metadata of checkpoints, each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        if (folder / METADATA).is_file():
            found[folder] = None
        elif folder.is_dir():
            found.update((path, None) for path in folder.glob("step-*") if path.is_dir())
    return found


def age(name: str) -> tuple[int, int]:
    """Return the step and the count in a name. The step is -1 if the name has none."""
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
    """Return a path that no checkpoint has yet."""
    name = folder / f"step-{step:08d}"
    count = 1
    while name.exists():
        count += 1
        name = folder / f"step-{step:08d}.{count}"
    return name


class Hashing:
    """File that computes the size and sha256 of the bytes that are written to it.

    :param file: receives the bytes
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        # Both release the GIL.
        self._digest.update(view)
        rest = view
        while rest.nbytes:
            rest = rest[self._file.write(rest) :]
        self._size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def description(self) -> dict[str, Any]:
        """Return size and sha256 in the form of the metadata."""
        return {"size_bytes": self._size, "sha256": self._digest.hexdigest()}


def dump(value: Any, file: IO[bytes]) -> dict[str, Any]:
    """Write bytes, a :class:`TensorFile`, or another value as ``torch.save`` does. Return size and sha256 of the bytes.

    :raises OSError: the file rejects a write
    """
    import torch

    hashing: Any = _Remembering(file)
    failed = None
    try:
        if isinstance(value, TensorFile):
            value.write(hashing)
        elif isinstance(value, bytes):
            hashing.write(value)
        else:
            torch.save(value, hashing)
    except (RuntimeError, OSError) as error:
        failed = hashing.error or error
    if failed is not None:
        # torch reports a full disk as its own RuntimeError.
        raise failed
    return dict(hashing.description())


class _Remembering(Hashing):
    """Keeps the error that torch's writer replaces by its own."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def save_file(path: Path, value: Any) -> dict[str, Any]:
    """Write one file of a checkpoint and flush it to the disk. Return its size and sha256.

    :param value: bytes, a :class:`TensorFile`, or an object that ``torch.save`` writes
    :raises CheckpointError: the object cannot be loaded without pickle
    :raises OSError: the disk rejects the write
    """
    with open(path, "xb", buffering=0) as file:
        description = dump(value, file)
        os.fsync(file.fileno())
    if not isinstance(value, (TensorFile, bytes)):
        _refuse_unsafe_file(path)
    return description


def unsafe_types(file: Any) -> list[str]:
    """Return the types in a file that ``torch.load(weights_only=True)`` refuses.

    :param file: a path, or an open file
    """
    import torch

    # Reads only the few bytes outside tensors. Versions of torch before 2.5 lack this function.
    find_unsafe = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", _refused_globals)
    return sorted(find_unsafe(file if hasattr(file, "read") else str(file)))


def _refuse_unsafe_file(path: Path) -> None:
    """Raise unless ``torch.load(weights_only=True)`` can read a file.

    :raises CheckpointError: names the types that it holds
    """
    unsafe = unsafe_types(path)
    if unsafe:
        raise CheckpointError(
            f"{path.name} of the checkpoint holds {', '.join(unsafe)}, which a checkpoint must not hold, because only "
            "a pickle could load it. Keep tensors, numbers, strings, lists and dicts in it."
        )


def _refused_globals(file: Any) -> list[str]:
    """Return the type at which ``torch.load(weights_only=True)`` stops, found by a load of the whole file."""
    import torch

    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.findall(r"(?:GLOBAL|global|class) (\S+\.\S+)", str(error))
        return [named[0].rstrip(".") if named else str(error).strip().splitlines()[-1][:200]]
    return []


def describe(path: Path, *, sync: bool = False) -> dict[str, Any]:
    """Return size and sha256 of a file in the form of the metadata.

    :param sync: write the file to the disk first
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
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
