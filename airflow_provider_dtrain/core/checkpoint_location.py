"""Places where checkpoints of a trial may be stored.

A path that a host reports is compared with these places and is never used itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

#: ``checkpoint_storage.type`` -> scheme of its URLs. A test compares it with the training library's.
SCHEMES = {"s3": "s3", "gcs": "gcs", "azure": "abfs"}
#: Other spellings that fsspec knows for the same storage. Accepted where a user writes the URL.
ALIASES = {"s3a": "s3", "gs": "gcs", "az": "abfs"}
#: Longest path that is compared, and longest path that is shown. Longer ones are refused, and shown shortened.
PATH_LIMIT, SHOWN_LIMIT = 1024, 200
#: Most folders between a run's folder and a checkpoint in it.
DEPTH_LIMIT = 8
#: The supervisor accepts the same names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DRAW = re.compile(r"(-draw-[1-9][0-9]{0,8})?", re.ASCII)


class StorageKind(StrEnum):
    """Kind of storage for a checkpoint."""

    #: The folder of one run, on one host only.
    RUN = "run"
    #: A folder that all hosts share.
    SHARED = "shared"
    #: A prefix of a bucket.
    BUCKET = "bucket"


class UntrustedPathError(ValueError):
    """A reported path is not where the configuration puts checkpoints. The message says why."""


@dataclass(frozen=True, kw_only=True)
class CheckpointPlace:
    """Place of one checkpoint, composed from the configuration and from checked names, never from a host's text."""

    kind: StorageKind
    #: What the configuration names: an absolute folder or a URL; "" for a run's folder.
    root: str
    #: Folder below the root that holds the checkpoint.
    folder: str
    #: Name of the checkpoint's own folder.
    name: str

    @property
    def relative(self) -> str:
        """Return the path below the root."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def path(self) -> str:
        """Return the whole path or URL. In a run's folder, it is relative to that folder."""
        return f"{self.root.rstrip('/')}/{self.relative}" if self.root else self.relative


@dataclass(frozen=True, kw_only=True)
class CheckpointPlaces:
    """Places that one trial may name: its runs' folders, and its own folder in the configured storage."""

    kind: StorageKind
    root: str
    experiment_id: int
    trial_id: int

    @classmethod
    def of(cls, storage: Mapping[str, Any] | None, experiment_id: int, trial_id: int) -> CheckpointPlaces:
        """Return the places of a trial.

        :param storage: ``checkpoint_storage`` of its configuration
        """
        root = storage_root(storage or {})
        kind = StorageKind.RUN
        if root is not None:
            kind = StorageKind.BUCKET if "://" in root else StorageKind.SHARED
        return cls(kind=kind, root=root or "", experiment_id=experiment_id, trial_id=trial_id)

    def find(self, path: object) -> CheckpointPlace:
        """Return the place that a reported path names.

        :raises UntrustedPathError: it is none of this trial's places
        """
        if not isinstance(path, str) or not path:
            raise UntrustedPathError("the path is empty or not a string")
        if len(path) > PATH_LIMIT:
            raise UntrustedPathError(f"the path has {len(path)} characters; at most {PATH_LIMIT} are accepted")
        if not path.startswith("/") and ":" not in path:
            return self._in_run(path)
        if self.kind is StorageKind.RUN:
            raise UntrustedPathError("only paths in the run's folder are accepted without checkpoint_storage")
        return self._in_storage(path)

    def _in_run(self, path: str) -> CheckpointPlace:
        parts = path.split("/")
        if len(parts) > DEPTH_LIMIT or not all(map(_is_name, parts)):
            raise UntrustedPathError("a path in the run's folder must have plain names between its slashes")
        return CheckpointPlace(kind=StorageKind.RUN, root="", folder="/".join(parts[:-1]), name=parts[-1])

    def _in_storage(self, path: str) -> CheckpointPlace:
        own = f"{self.root.rstrip('/')}/experiment-{self.experiment_id}/trial-{self.trial_id}"
        draw, _, name = path.removeprefix(own).partition("/")
        if not path.startswith(own) or not _DRAW.fullmatch(draw) or not _is_name(name):
            raise UntrustedPathError(f"checkpoints of this trial must be directly below {own}/")
        folder = f"experiment-{self.experiment_id}/trial-{self.trial_id}{draw}"
        return CheckpointPlace(kind=self.kind, root=self.root, folder=folder, name=name)


def storage_root(storage: Mapping[str, Any]) -> str | None:
    """Return the folder or URL below which a configuration puts checkpoints. None = in the runs' folders."""
    kind = str(storage.get("type") or "")
    folder = storage.get({"shared_fs": "host_path", "directory": "container_path"}.get(kind, ""))
    if folder:
        inner = str(storage.get("storage_path") or "") if kind == "shared_fs" else ""
        return str(PurePosixPath(str(folder)) / inner)
    if kind not in SCHEMES:
        return None
    bucket = str(storage.get("bucket") or storage.get("container") or "").strip("/")
    prefix = str(storage.get("prefix") or "").strip("/")
    return f"{SCHEMES[kind]}://{bucket}" + (f"/{prefix}" if prefix else "")


def url_problem(url: str, storage: Mapping[str, Any]) -> str | None:
    """Return the reason why a URL from a user must not be opened here, else None.

    :param storage: ``checkpoint_storage`` of the configuration that names it
    """
    scheme = url.partition("://")[0]
    wanted = SCHEMES.get(str(storage.get("type") or ""))
    if wanted is None or ALIASES.get(scheme, scheme) != wanted:
        names = f"{wanted}://" if wanted else "no URL"
        return f"checkpoint_storage.type is {storage.get('type') or 'not set'}, which accepts {names}"
    rest = url.partition("://")[2]
    if "::" in url or "://" in rest or ".." in rest.split("/") or any(char in url for char in "\0*?[]"):
        return "it is not the plain URL of one checkpoint"
    return None


def shown_path(path: object) -> str:
    """Return a reported path as it may be stored and shown: one line of ASCII, shortened."""
    text = str(path).encode("ascii", "backslashreplace").decode()
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return text if len(text) <= SHOWN_LIMIT else f"{text[:SHOWN_LIMIT]}... ({len(text)} characters)"


def _is_name(part: str) -> bool:
    return _NAME.fullmatch(part) is not None
