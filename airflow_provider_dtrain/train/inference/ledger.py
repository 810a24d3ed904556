"""Ledger of an output folder: which shards are done, by which run, from what.

::

    _dtrain/owner.json                       the run that may write, with a counter that it raises
    _dtrain/run.json                         what the results depend on, and the batch size
    _dtrain/plan.json                        the shards
    _dtrain/done/00012.<run>.json            one entry per shard: its part, rows, checksum, schema, metrics
    _dtrain/skipped/00012.json               a shard that was set aside, and why
    _dtrain/parts/part-00012.<run>.parquet   parts that are not published yet (file systems)
    part-00012.parquet                       published part (file systems)
    part-00012.<run>.parquet                 part (object stores, which cannot rename)
    _manifest.json                            the result, written last

The ledger alone decides what is missing. It needs no store of the control side.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.train.errors import OtherRunError, OutputFolderError
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.inference.output_folder import OWN, TEMPORARY
from airflow_provider_dtrain.train.inference.shards import Shard, differences
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

RUN = f"{OWN}/run.json"
PLAN = f"{OWN}/plan.json"
DONE = f"{OWN}/done"
SKIPPED = f"{OWN}/skipped"
PARTS = f"{OWN}/parts"
#: Beginning of the name of a file that shows whether all hosts see the folder.
COMMON = "common-"
#: Readers of folders, such as Arrow and Spark, leave out names that begin with an underscore.
MANIFEST = "_manifest.json"
FORMAT = 1
#: Type of a column without any value.
NULL = "null"
_ENTRY = re.compile(r"(\d{5,})\.(.+)\.json", re.ASCII)
#: Skipped shards that the event of the manifest names.
SKIPPED_MOST = 100
#: Characters of an error message that the ledger keeps.
ERROR_CHARACTERS = 2000


@dataclass(frozen=True)
class FinishedShard:
    """A shard that is done."""

    shard: int
    #: Run that computed it.
    run: str
    #: Name of the part, without folder. None: the processor returned no rows.
    part: str | None
    rows: int
    size: int
    sha256: str
    #: Column -> type; empty without rows.
    schema: Mapping[str, str] = field(default_factory=dict)
    #: Metric -> (reducer, value, weight), see :mod:`airflow_provider_dtrain.train.inference.metrics`.
    metrics: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: Rows of the input with a result, which are also rows of the output unless the processor returned none.
    rows_read: int = 0
    #: Rows of the input that could not be read or computed: left out, or marked in the output.
    rows_bad: int = 0
    #: The first of them: row id, name and error.
    bad_rows: Sequence[Sequence[Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the entry in the ledger."""
        return f"{DONE}/{self.shard:05d}.{self.run}.json"


@dataclass(frozen=True)
class Skipped:
    """A shard that was set aside."""

    shard: int
    label: str
    error: str
    #: Run key of the run that set it aside. Another run tries it again.
    key: str


class Ledger:
    """The ledger of one output folder, as one run uses it.

    :param run: name of this run, different for each attempt; part of the names of its files
    :param key: name that all attempts of one task share
    """

    def __init__(self, folder: Place, *, run: str, key: str, suffix: str) -> None:
        self.folder = folder
        self.run = run
        self.key = key
        self._suffix = suffix

    # -- the start of a run, on rank 0 -----------------------------------------------------------------------------

    def open(self, facts: Mapping[str, Any], shards: Sequence[Shard], *, overwrite: bool) -> JsonObject:
        """Begin or continue the work in the folder. Return what the ledger knows of the run.

        :param facts: what the results depend on: part -> JSON
        :param overwrite: begin anew unless this task itself has begun
        :raises OtherRunError: the folder holds results that depend on other facts, or files that are not of a run
        """
        known = self.known()
        if known is None:
            self.refuse_foreign()
        elif overwrite and known.get("key") != self.key:
            self.clear()
            known = None
        if known is not None:
            self._compare(known, facts, overwrite=overwrite)
            return known
        document = {"format": FORMAT, "key": self.key, "facts": dict(facts), "batch_size": None}
        self.begin(document, [shard.to_dict() for shard in shards])
        return document

    def known(self) -> JsonObject | None:
        """Return what the folder's first run recorded about itself, or None.

        :raises OtherRunError: the record is damaged
        """
        return self._document(RUN)

    def begin(self, document: Mapping[str, Any], plan: Sequence[Mapping[str, Any]]) -> None:
        """Record a run and its plan.

        :param plan: shards as :meth:`Shard.to_dict` returns them
        """
        self.folder.write(PLAN, encode(plan))
        self.folder.write(RUN, encode(document))

    def set_batch_size(self, size: int) -> None:
        """Record the batch size, which every later run into the folder uses."""
        self.folder.write(RUN, encode({**(self.known() or {}), "batch_size": size}))

    def planned(self) -> list[Shard]:
        """Return the shards that the folder's first run planned."""
        content = self.folder.read(PLAN)
        found = decode(content) if content is not None else None
        if not isinstance(found, list):
            raise OutputFolderError(
                f"The ledger of {self.folder.location} is damaged: {PLAN} is missing or not readable. Remove the "
                "folder, or set inference.outputs.overwrite: true."
            )
        return [Shard.from_dict(item) for item in found]

    def clear(self) -> None:
        """Remove the results of another run: the manifest first, so that no moment shows a part of them.

        The document of the run is removed after the parts: while it exists, an attempt that is cut off here is
        continued, and the parts are no foreign files.
        """
        folder = self.folder
        own = {name for name in folder.names() if name.startswith("part-") or name == MANIFEST}
        foreign_names = self._foreign_names() - own
        if foreign_names:
            raise OtherRunError(self._foreign(foreign_names))
        folder.remove(MANIFEST)
        for place in (DONE, SKIPPED, PARTS):
            for name in folder.names(place):
                folder.remove(f"{place}/{name}")
        for name in sorted(own):
            folder.remove(name)
        folder.remove(RUN)
        folder.remove(PLAN)

    def sweep(self) -> None:
        """Remove incomplete files of ended runs. No other rank writes meanwhile."""
        for name in self.folder.names(TEMPORARY):
            if not name.startswith(f"{self.run}."):
                self.folder.remove(f"{TEMPORARY}/{name}")
        for name in self.folder.names(OWN):
            if name.startswith(COMMON):
                self.folder.remove(f"{OWN}/{name}")

    def tidy(self, entries: Iterable[FinishedShard]) -> None:
        """Remove all entries but these: of lost parts, of shards that two runs have computed, and damaged ones.

        Two runs may have written parts of one size, so an entry without its part could later be taken for that of the
        published part.
        """
        kept = {entry.name for entry in entries}
        for name in self.folder.names(DONE):
            if f"{DONE}/{name}" not in kept:
                self.folder.remove(f"{DONE}/{name}")

    # -- shards ----------------------------------------------------------------------------------------------------

    def entries(self) -> dict[int, FinishedShard]:
        """Return the entry of each shard that is done and whose part exists, read anew."""
        names = [f"{DONE}/{name}" for name in self.folder.names(DONE) if _ENTRY.fullmatch(name)]
        found = [(name, _entry(content)) for name, content in sorted(self.folder.read_all(names).items())]
        # A run that was cut off while it wrote leaves an entry that cannot be read.
        written = [entry for name, entry in found if entry is not None and entry.name == name]
        runs = Counter(entry.shard for entry in written)
        first: dict[int, FinishedShard] = {}
        for entry in written:
            if entry.shard not in first and self._has_part(entry, is_only=runs[entry.shard] == 1):
                first[entry.shard] = entry
        return first

    def _has_part(self, entry: FinishedShard, *, is_only: bool) -> bool:
        """Return whether the part of an entry exists.

        :param is_only: no other run has an entry of the shard. Else a published part is the entry's if its checksum is.
        """
        place = self.place_of(entry)
        if place is None:
            return entry.part is None
        if is_only or not self.folder.renames or place != self.final_name(entry):
            return True
        return hashlib.sha256(self.folder.read(place) or b"").hexdigest() == entry.sha256

    def place_of(self, entry: FinishedShard) -> str | None:
        """Return the name of a part in the folder, wherever it is now, or None when it is missing or was cut."""
        if entry.part is None:
            return None
        places = (f"{PARTS}/{entry.part}", self.final_name(entry)) if self.folder.renames else (entry.part,)
        return next((place for place in places if self.folder.size(place) == entry.size), None)

    def skipped(self, done: Container[int] = ()) -> dict[int, Skipped]:
        """Return the shards that attempts of this task have set aside.

        :param done: shards that have an entry, which another run has computed since
        """
        names = [f"{SKIPPED}/{name}" for name in self.folder.names(SKIPPED)]
        found = [decode(content) for content in self.folder.read_all(names).values()]
        known = [Skipped(**item) for item in found if isinstance(item, dict)]
        return {one.shard: one for one in known if one.key == self.key and one.shard not in done}

    def part_name(self, shard: int) -> str:
        """Return the name of this run's part of a shard."""
        return f"part-{shard:05d}.{self.run}.{self._suffix}"

    def final_name(self, entry: FinishedShard) -> str:
        """Return the name that a part has in the published folder."""
        assert entry.part is not None
        return f"part-{entry.shard:05d}.{self._suffix}" if self.folder.renames else entry.part

    def delivery_name(self, shard: int) -> str:
        """Return the place of this run's part of a shard before it is published."""
        name = self.part_name(shard)
        return f"{PARTS}/{name}" if self.folder.renames else name

    def add(self, entry: FinishedShard) -> None:
        """Record that a shard is done. Its part is in the folder already."""
        self.folder.write(entry.name, encode(entry.__dict__))

    def set_aside(self, shard: Shard, error: str) -> Skipped:
        """Record that a shard is skipped."""
        one = Skipped(shard.index, shard.label, error[:ERROR_CHARACTERS], self.key)
        self.folder.write(f"{SKIPPED}/{shard.index:05d}.json", encode(one.__dict__))
        return one

    # -- the end of a run, on rank 0 -------------------------------------------------------------------------------

    def publish(
        self,
        entries: Iterable[FinishedShard],
        skipped: Iterable[Skipped],
        facts: Mapping[str, Any],
        metrics: Mapping[str, Any],
        *,
        confirm: Callable[[], object] = bool,
    ) -> tuple[JsonObject, str | None]:
        """Give every part its final name, remove what does not belong, write the manifest. Can be repeated.

        :param confirm: raises when another run owns the folder by now. Called right before each step that would harm
            the results of that run: a process that was stopped for long continues anywhere.
        :return: the manifest, and its sha256; None: the control side publishes
        :raises OutputFolderError: a part is missing
        """
        folder = self.folder
        ordered = sorted(entries, key=lambda entry: entry.shard)
        names = {entry.shard: self.final_name(entry) for entry in ordered if entry.part is not None}
        confirm()
        for entry in ordered:
            if entry.part is None:
                continue
            place = self.place_of(entry)
            if place is None:
                raise OutputFolderError(
                    f"The part {entry.part} of {folder.location} has vanished or was changed. Run again: its shard is "
                    "computed anew."
                )
            if place != names[entry.shard]:
                folder.rename(place, names[entry.shard])
        confirm()
        # Before the parts of other entries are removed, for the reason that tidy names.
        self.tidy(ordered)
        kept = set(names.values())
        for name in folder.names():
            if name.startswith("part-") and name not in kept:
                folder.remove(name)
        manifest = self.manifest(ordered, skipped, facts, metrics)
        content = json.dumps(manifest, allow_nan=False, indent=1).encode()
        if folder.read(MANIFEST) != content:
            confirm()
            folder.write(MANIFEST, content)
        for name in folder.names(PARTS):
            folder.remove(f"{PARTS}/{name}")
        return manifest, hashlib.sha256(content).hexdigest()

    def manifest(
        self,
        ordered: Sequence[FinishedShard],
        skipped: Iterable[Skipped],
        facts: Mapping[str, Any],
        metrics: Mapping[str, Any],
    ) -> JsonObject:
        """Return the manifest.

        :param ordered: entries by shard
        """
        return {
            "format": FORMAT,
            "location": self.folder.location,
            "rows": sum(entry.rows for entry in ordered),
            "rows_read": sum(entry.rows_read for entry in ordered),
            "rows_bad": sum(entry.rows_bad for entry in ordered),
            "bytes": sum(entry.size for entry in ordered),
            "schema": merged_schema(ordered),
            "metrics": dict(metrics),
            "facts": dict(facts),
            "objects": [
                {"name": self.final_name(entry), "shard": entry.shard, "rows": entry.rows, "bytes": entry.size,
                 "sha256": entry.sha256}
                for entry in ordered
                if entry.part is not None
            ],
            "skipped": [{"shard": one.shard, "label": one.label, "error": one.error} for one in skipped],
            "bad_rows": [
                {"row": row_id, "name": name, "error": error}
                for entry in ordered
                for row_id, name, error in entry.bad_rows
            ],
        }  # fmt: skip

    # -- inside ----------------------------------------------------------------------------------------------------

    def _document(self, name: str) -> JsonObject | None:
        content = self.folder.read(name)
        if content is None:
            return None
        found = decode(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise OtherRunError(
                f"{self.folder.location}/{name} is damaged, or was written by another version. Use another output "
                "folder, or remove this one."
            )
        return found

    def refuse_foreign(self) -> None:
        """Raise when the folder holds files, but no ledger.

        :raises OtherRunError: names some of the files
        """
        if self.known() is not None:
            return
        foreign_names = self._foreign_names()
        if foreign_names:
            raise OtherRunError(self._foreign(foreign_names))

    def _foreign_names(self) -> set[str]:
        return set(self.folder.entries()) - {OWN}

    def _foreign(self, names: Iterable[str]) -> str:
        shown = sorted(names)
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        return (
            f"The output folder {self.folder.location} must be empty, or hold results of a batch inference. It holds "
            f"{', '.join(shown[:3])}{more}, which no run wrote. Use another folder."
        )

    def _compare(self, known: Mapping[str, Any], facts: Mapping[str, Any], *, overwrite: bool) -> None:
        before = known.get("facts") or {}
        names = [name for name in facts if _plain(before.get(name)) != _plain(facts[name])]
        if not names:
            return
        lines = "".join(f"\n  {name}: {_difference(name, before.get(name), facts[name])}" for name in names)
        another = "Use another folder, or set inference.outputs.overwrite: true"
        advice = "Clear the task's output folder" if overwrite else another
        raise OtherRunError(
            f"The output folder {self.folder.location} holds results that depend on other {', '.join(names)}. {advice}."
            f"{lines}"
        )


def merged_schema(entries: Iterable[FinishedShard]) -> dict[str, str]:
    """Return column -> type of all parts. A column has the type ``null`` only if it has no other one in any part."""
    found: dict[str, str] = {}
    for entry in entries:
        for name, kind in entry.schema.items():
            if found.get(name, NULL) == NULL:
                found[name] = kind
    return found


def manifest_event(manifest: Mapping[str, Any], digest: str, *, shards: int) -> JsonObject:
    """Return the event of a published manifest.

    :param digest: sha256 of its file
    :param shards: number of all shards
    """
    names = ("location", "rows", "rows_bad", "bytes", "schema")
    skipped = [one["shard"] for one in manifest["skipped"]][:SKIPPED_MOST]
    return {**{name: manifest[name] for name in names}, "shards": shards, "skipped": skipped, "sha256": digest}


def _difference(name: str, before: Any, now: Any) -> str:
    if name == "inputs" and isinstance(before, Mapping):
        return "; ".join(differences(before, now))
    return difference(before, now)


def difference(before: Any, now: Any) -> str:
    """Return the first difference of two JSON values, ``was X, is Y``, with its path."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            if _plain(before.get(key)) != _plain(now.get(key)):
                inner = difference(before.get(key), now.get(key))
                return f"{key}: {inner}"
    if isinstance(before, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip(before, now)):
            if _plain(old) != _plain(new):
                return f"[{index}]: {difference(old, new)}"
        return f"was {len(before)} items, is {len(now)} items"
    return f"was {_shown(before)}, is {_shown(now)}"


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def encode(value: Any) -> bytes:
    """Return a document of the ledger: JSON, with a checksum by which a cut file is found."""
    text = json.dumps(value, allow_nan=False)
    return f'{{"crc32": {zlib.crc32(text.encode())}, "document": {text}}}'.encode()


def decode(content: bytes) -> Any:
    """Return the document, or None when it is damaged."""
    try:
        found = json.loads(content)
        value = found["document"]
        return value if found["crc32"] == zlib.crc32(json.dumps(value, allow_nan=False).encode()) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _entry(content: bytes) -> FinishedShard | None:
    found = decode(content)
    try:
        return FinishedShard(**found) if isinstance(found, dict) else None
    except TypeError:
        return None
