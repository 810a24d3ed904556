"""Shards of an input, and the plan that divides an input into shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.train.values import JsonObject

#: Source of the shards of a data set from code.
DATASET = "dataset"
#: Row ids of a source whose predecessors have an unknown number of rows begin at its number times this.
SOURCE_ROWS = 1 << 40
#: Longest name in a label, characters.
NAME_LIMIT = 120


@dataclass(frozen=True)
class Shard:
    """A piece of the input that one rank processes and writes as one part."""

    index: int
    #: Path or URL of the file; for listings, path or URL of its first file; for data sets, ``dataset``.
    source: str
    #: Rows of the file, files of the listing or samples of the data set; 0 and 0: all of the source.
    start: int
    stop: int
    #: Number of rows; None until the shard was read.
    rows: int | None
    #: Row id of the first row: its number in the whole input if all counts are known, else file number << 40.
    first_row: int
    #: Plain JSON for the reader of the same format: version of the source, column types, unit of start and stop.
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name for messages, e.g. ``part-3.parquet rows 1000-1999``. Both numbers are inclusive and begin at 0."""
        name = printable(self.source.rstrip("/").rpartition("/")[2] or self.source)
        if self.start == self.stop == 0:
            return f"{name} shard {self.index}" if self.source == DATASET else name
        if self.source == DATASET:
            return f"{name} samples {self.start}-{self.stop - 1}"
        if self.details.get("unit") == "files":
            return f"files {self.start}-{self.stop - 1} from {name}"
        return f"{name} rows {self.start}-{self.stop - 1}"

    def to_dict(self) -> JsonObject:
        """Return the shard as plain JSON."""
        return {
            "index": self.index, "source": self.source, "start": self.start, "stop": self.stop, "rows": self.rows,
            "first_row": self.first_row, "details": dict(self.details),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Shard:
        """Return the shard of :meth:`to_dict`."""
        rows = document["rows"]
        return cls(
            index=int(document["index"]),
            source=str(document["source"]),
            start=int(document["start"]),
            stop=int(document["stop"]),
            rows=None if rows is None else int(rows),
            first_row=int(document["first_row"]),
            details=dict(document.get("details") or {}),
        )


@dataclass(frozen=True)
class InputPlan:
    """All shards of an input, the same for any number of ranks."""

    shards: tuple[Shard, ...]
    #: Plain JSON that is equal exactly if the input and its division into shards are equal.
    identity: Mapping[str, Any]

    @property
    def rows(self) -> int | None:
        """Number of rows of the input, None if a source does not know it."""
        return rows_of(self.shards)


def rows_of(shards: Iterable[Shard]) -> int | None:
    """Return the number of rows of shards, None if one does not know it."""
    counts = [shard.rows for shard in shards]
    return None if None in counts else sum(count for count in counts if count is not None)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, limit: int = 5) -> list[str]:
    """Return sentences that name what differs between two identities of inputs.

    :param limit: most differing files to name
    """
    names = sorted((set(before) | set(now)) - {"files"})
    found = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]
    old, new = _versions(before), _versions(now)
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    found += [_file_difference(path, old.get(path), new.get(path)) for path in changed[:limit]]
    if len(changed) > limit:
        found.append(f"{len(changed) - limit} more files differ")
    return found


def printable(text: str) -> str:
    """Return a file name without control characters, short enough for a message."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= NAME_LIMIT else f"{clean[: NAME_LIMIT - 3]}..."


def default_shard_rows(total: int, batch_size: int | None, *, least: int, most: int) -> int:
    """Return the rows per shard that divide an input into about 256 shards of whole batches, within the limits.

    :param batch_size: None: it is found later, as a power of two
    """
    size = min(most, max(least, -(-total // 256)))
    if batch_size is None:
        return 1 << (size - 1).bit_length()
    return -(-size // batch_size) * batch_size


def _versions(identity: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    files = identity.get("files")
    return {str(one["path"]): one for one in files} if isinstance(files, list) else {}


def _file_difference(path: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    if before is None:
        return f"{printable(path)} is new"
    if now is None:
        return f"{printable(path)} is missing"
    return f"{printable(path)} was {_version(before)} and is {_version(now)}"


def _version(one: Mapping[str, Any]) -> str:
    return f"{one.get('size')} bytes of version {one.get('version')}"
