"""Description of a checkpoint: its file ``metadata.json``, which holds the size and sha256 of each other file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError

#: Format that is written and read.
FORMAT = 1
METADATA = "metadata.json"
#: Largest metadata that is written and read: 10,000 files take 2 MB.
METADATA_LIMIT_BYTES = 16 << 20
#: ``kind`` in the metadata of a checkpoint whose files a program wrote itself.
FILES = "files"


@dataclass(frozen=True)
class SavedCheckpoint:
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


def parse(text: bytes, path: Path, url: str | None = None) -> SavedCheckpoint:
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
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{url or path} has format {str(metadata.get('format'))[:50]}; this version reads format {FORMAT}. "
            "Use the version of airflow-provider-dtrain that wrote it, or a newer one."
        )
    return SavedCheckpoint(path, step, hashlib.sha256(text).hexdigest(), size + len(text), metadata, url)


def is_plain_name(name: str) -> bool:
    """Return whether a file of a checkpoint may have this path below its folder."""
    parts = name.split("/")
    return name != METADATA and "\0" not in name and not any(part in {"", ".", ".."} for part in parts)


def _size_of(name: object, file: Mapping[str, Any]) -> int:
    """Return the size that the metadata gives for a file.

    :raises TypeError: the entry has another form than :func:`describe` writes
    """
    if file.keys() != {"size_bytes", "sha256"} or type(file["size_bytes"]) is not int or file["size_bytes"] < 0:
        raise TypeError(f"files.{name} must have size_bytes and sha256")
    return int(file["size_bytes"])


def refuse_files(checkpoint: SavedCheckpoint) -> None:
    """Raise when the library cannot read the weights of a checkpoint, because a program wrote its files itself.

    :raises CheckpointError: names the checkpoint
    """
    if checkpoint.is_of_files:
        raise CheckpointError(
            f"The checkpoint {checkpoint.where} was written by ctx.checkpoint. Only the program that wrote its files "
            "can read them: ctx.latest_checkpoint()."
        )


def _checksum(metadata: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in metadata.items() if k != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def step_name(step: int) -> str:
    """Return the name of the first checkpoint of a step. Further ones have a count behind a dot."""
    return f"step-{step:08d}"


def next_name(step: int, taken: Collection[str]) -> str:
    """Return the name of a further checkpoint of a step. It sorts behind all others, also if some were removed."""
    base = step_name(step)
    counts = [name.removeprefix(f"{base}.") for name in taken if name != base]
    largest = max((int(count) for count in counts if count.isdigit()), default=int(base in taken))
    return f"{base}.{largest + 1}" if largest else base
