"""Output folder on this machine of a batch inference whose parts are fetched from the hosts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, Strict

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.event_log import (
    COLUMNS_LIMIT,
    METRIC_NAME_LIMIT,
    METRICS_LIMIT,
    SHARDS_LIMIT,
)
from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.engine.copies.mirror import (
    DamagedCopyError,
    checked,
    fetched,
    partial_copy,
    read_bounded,
    sweep,
)
from airflow_provider_dtrain.errors import CollectError
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError, pack_tree, tree_bytes
from airflow_provider_dtrain.train.errors import TrainError
from airflow_provider_dtrain.train.files.local import readable_mode
from airflow_provider_dtrain.train.inference import metrics
from airflow_provider_dtrain.train.inference.collected import ENTRY, FOLDER, KNOWN, shard_folder
from airflow_provider_dtrain.train.inference.ledger import (
    ERROR_CHARACTERS,
    FORMAT,
    PARTS,
    PLAN,
    RUN,
    FinishedShard,
    Ledger,
    decode,
    encode,
    manifest_event,
)
from airflow_provider_dtrain.train.inference.output_folder import OWN, TEMPORARY, open_folder
from airflow_provider_dtrain.train.inference.owner import owner_of
from airflow_provider_dtrain.train.inference.shards import Shard
from airflow_provider_dtrain.train.reports.reducers import Reducer

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.inference import Inference
    from airflow_provider_dtrain.hooks.settings import Settings
    from airflow_provider_dtrain.hosts.channel.link import HostLink

#: Most bytes of an entry, and of the record or the plan of a run: 1,000 metrics, and 100,000 shards.
ENTRY_LIMIT_BYTES, RECORD_LIMIT_BYTES = 1 << 20, 64 << 20
#: Deepest nesting, and most values of an entry and of a record.
_DEPTH, _ENTRY_VALUES, _RECORD_VALUES = 32, 20_000, 4_000_000
#: Most rows of a shard that were left out and that its entry names, and characters of their names and errors.
BAD_ROWS_LIMIT, BAD_ROW_TEXT_LIMIT = 100, 8192
#: Errors of this machine or of a connection that may pass. All others are of the output folder.
_PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.EPIPE, errno.ECONNRESET}
)

_Name = Annotated[str, Field(max_length=METRIC_NAME_LIMIT)]
_Text = Annotated[str, Field(max_length=BAD_ROW_TEXT_LIMIT)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Reducer = Annotated[str, Field(pattern=f"^({'|'.join(Reducer.__members__)})$")]
_Lax = Strict(strict=False)


class _RunForm(BaseModel, strict=True):
    """Record of a run, as rank 0 writes it."""

    format: Literal[1]
    facts: JsonObject
    batch_size: _Count


class _EntryForm(BaseModel, strict=True, extra="forbid"):
    """Fields of an :class:`FinishedShard`, as a host may send them."""

    shard: _Count
    run: str
    part: str | None
    rows: _Count
    size: _Count
    sha256: str
    columns: dict[_Name, _Name] = Field(alias="schema", max_length=COLUMNS_LIMIT)
    metrics: dict[_Name, Annotated[tuple[_Reducer, float | Literal["nan", "inf", "-inf"], float], _Lax]] = Field(
        max_length=METRICS_LIMIT
    )
    rows_read: _Count
    rows_bad: _Count
    bad_rows: list[Annotated[tuple[_Count, _Text, _Text], _Lax]] = Field(max_length=BAD_ROWS_LIMIT)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Most bytes that are fetched."""

    part_bytes: int
    folder_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Return the limits of the options."""
        return cls(part_bytes=settings.collect_part_limit_bytes, folder_bytes=settings.collect_limit_bytes)


class CollectedResults:
    """Ledger and parts of one run in the output folder on this machine. All methods block.

    :param run: name of the run on the hosts
    :raises CollectError: by every method: the folder cannot be used, or what arrived exceeds a limit
    """

    def __init__(self, section: Inference, run: str, limits: Limits) -> None:
        path = section.outputs.path
        self._root = Path(path)
        self._run = run
        self._limits = limits
        self._overwrites = section.outputs.overwrite
        folder = open_folder(path, {}, run)
        # As the ranks name it: all attempts of a trial share the first part of their names.
        key = run.partition(".")[0]
        self._ledger = Ledger(folder, run=run, key=key, suffix=section.outputs.format)
        self._owner = owner_of(folder, run=run, key=key)
        self._plan: list[Shard] = []
        self._taken_bytes = 0

    # -- the start -------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Own the folder until :meth:`suspend` or :meth:`release`. Waits 30 s for the end of another run's claim."""
        with _named(self._ledger.folder.location):
            self._ledger.refuse_foreign()
            self._owner.acquire()
            (self._root / TEMPORARY).mkdir(parents=True, exist_ok=True)
            self._ledger.sweep()
            sweep(self._root / TEMPORARY)

    def suspend(self) -> None:
        """Stop renewing the claim, which the next follower of the trial takes over."""
        self._owner.suspend()

    def release(self) -> None:
        """Give the folder up."""
        self._owner.release()

    def send_known(self, link: HostLink) -> None:
        """Send what the ledger knows to the host of rank 0, before its rank starts."""
        with _named(self._ledger.folder.location):
            content = encode(self._known())
            with partial_copy(self._root / TEMPORARY) as folder:
                (folder / KNOWN).write_bytes(content)
                with link.putting(self._run, FOLDER) as outgoing:
                    pack_tree(folder, cast("IO[bytes]", outgoing), OWN)

    def _known(self) -> JsonObject:
        ledger = self._ledger
        run = ledger.known()
        if run is None or self._is_replaced(run):
            return {"run": None, "plan": [], "entries": [], "skipped": []}
        entries = ledger.entries()
        return {
            "run": run,
            "plan": [shard.to_dict() for shard in ledger.planned()],
            "entries": [dict(one.__dict__) for one in entries.values()],
            "skipped": [dict(one.__dict__) for one in ledger.skipped(entries).values()],
        }

    def _is_replaced(self, run: Mapping[str, Any]) -> bool:
        return self._overwrites and run.get("key") != self._ledger.key

    def begin(self, link: HostLink) -> set[int]:
        """Fetch what rank 0 begins or continues, record it, and return the shards that are done or set aside.

        :raises DamagedCopyError: it is not a run, or differs from the one that the folder holds
        """
        with _named(self._ledger.folder.location):
            run = _run_of(self._record(link, RUN))
            plan = _plan_of(self._record(link, PLAN))
            self._plan = plan
            documents = [shard.to_dict() for shard in plan]
            known = self._ledger.known()
            if known is not None and self._is_replaced(known):
                self._ledger.clear()
                known = None
            if known is None:
                self._ledger.begin({**run, "key": self._ledger.key}, documents)
            elif _plain([known.get("facts"), [one.to_dict() for one in self._ledger.planned()]]) != _plain(
                [run["facts"], documents]
            ):
                raise DamagedCopyError("rank 0 reports another run than the one whose results the folder holds")
            elif known.get("batch_size") is None:
                self._ledger.set_batch_size(run["batch_size"])
            self._taken_bytes = tree_bytes(self._root)
            entries = self._ledger.entries()
            self._ledger.tidy(entries.values())
            return {*entries, *self._ledger.skipped()}

    def resume(self) -> set[int] | None:
        """Return the shards that are done or set aside, by the record that a predecessor has put into the folder.

        Rank 0 has compared the record with its own settings, or refuses to compute.

        :return: None: there is no such record
        """
        with _named(self._ledger.folder.location):
            known = self._ledger.known()
            if known is None or self._is_replaced(known) or known.get("batch_size") is None:
                return None
            self._plan = self._ledger.planned()
            self._taken_bytes = tree_bytes(self._root)
            return {*self._ledger.entries(), *self._ledger.skipped()}

    def _record(self, link: HostLink, name: str) -> Any:
        """Fetch a record of rank 0."""
        with self._fetched(link, name, limit_bytes=RECORD_LIMIT_BYTES, limit_files=1) as folder:
            return _document(folder / name.rpartition("/")[2], RECORD_LIMIT_BYTES, _RECORD_VALUES)

    def _fetched(
        self, link: HostLink, name: str, *, limit_bytes: int, limit_files: int
    ) -> contextlib.AbstractContextManager[Path]:
        transfer = link.fetching(self._run, f"{FOLDER}/{name}")
        return fetched(self._root / TEMPORARY, transfer, limit_bytes=limit_bytes, limit_files=limit_files)

    # -- shards ----------------------------------------------------------------------------------------------------

    def take(self, link: HostLink, shard: int, *, size: int, sha256: str) -> None:
        """Fetch a shard that is done, and record it.

        :param size: bytes of its part as the rank reported them
        :raises DamagedCopyError: the files are not those that the rank reported, or the archive is damaged
        """
        if shard >= len(self._plan):
            raise DamagedCopyError(f"shard {shard} is not one of {len(self._plan)}")
        self._check_room(shard, size)
        with _named(self._ledger.folder.location):
            self._owner.check()
            try:
                with self._fetched(
                    link, shard_folder(shard), limit_bytes=size + ENTRY_LIMIT_BYTES, limit_files=2
                ) as folder:
                    size_bytes = tree_bytes(folder)
                    self._deliver(folder / f"{shard:05d}", shard, size, sha256)
            except ArchiveLimitError as error:
                raise DamagedCopyError(f"shard {shard} was reported with {size} bytes: {error}") from error
            self._taken_bytes += size_bytes

    def _check_room(self, shard: int, size: int) -> None:
        limits = self._limits
        if size > limits.part_bytes:
            raise CollectError(
                f"The part of shard {shard} has {size} bytes, and at most {limits.part_bytes} are fetched. Lower "
                "inference.inputs.shard_rows, or raise [dtrain] collect_part_limit."
            )
        if self._taken_bytes + size > limits.folder_bytes:
            raise CollectError(
                f"The output folder {self._ledger.folder.location} holds {self._taken_bytes} bytes, shard {shard} adds "
                f"{size}, and at most {limits.folder_bytes} are fetched. Raise [dtrain] collect_limit, or use shared "
                "storage instead of inference.collect."
            )

    def _deliver(self, folder: Path, shard: int, size: int, sha256: str) -> None:
        entry = _entry_of(_document(folder / ENTRY, ENTRY_LIMIT_BYTES, _ENTRY_VALUES), self._ledger, shard)
        if entry.part is not None:
            part = folder / entry.part
            found = (part.lstat().st_size, _sha256(part)) if part.is_file() else (-1, "")
            if found != (size, sha256) or (entry.size, entry.sha256) != (size, sha256):
                raise DamagedCopyError(f"the part of shard {shard} differs from its size or checksum")
            part.chmod(readable_mode())
            self._ledger.folder.deliver(part, f"{PARTS}/{entry.part}")
        self._ledger.add(entry)

    def set_aside(self, shard: int, error: str) -> None:
        """Record that the ranks have skipped a shard."""
        if shard >= len(self._plan):
            raise DamagedCopyError(f"shard {shard} is not one of {len(self._plan)}")
        with _named(self._ledger.folder.location):
            self._owner.check()
            self._ledger.set_aside(self._plan[shard], error[:ERROR_CHARACTERS])

    # -- the end ---------------------------------------------------------------------------------------------------

    def missing(self) -> str:
        """Return the shards that have not arrived in words, an empty text if all have."""
        with _named(self._ledger.folder.location):
            if not self._plan and self.resume() is None:
                return "The shards have"
            count = len(self._missing())
            return f"{count} of {len(self._plan)} shards {'has' if count == 1 else 'have'}" if count else ""

    def _missing(self) -> set[int]:
        entries = self._ledger.entries()
        return {shard.index for shard in self._plan} - {*entries, *self._ledger.skipped(entries)}

    def publish(self) -> JsonObject:
        """Publish the results and return the event of the manifest. Can be repeated."""
        with _named(self._ledger.folder.location):
            entries = self._ledger.entries()
            skipped = self._ledger.skipped(entries)
            missing = {shard.index for shard in self._plan} - {*entries, *skipped}
            if missing or not self._plan:
                raise CollectError(
                    f"{len(missing)} of {len(self._plan)} shards have not arrived in {self._ledger.folder.location}, "
                    "although all ranks have ended. Run again: only these shards are computed."
                )
            self._owner.confirm()
            ordered = [entries[shard] for shard in sorted(entries)]
            found = _combined(ordered)
            safe = {name: value if math.isfinite(value) else None for name, value in found.items()}
            facts = (self._ledger.known() or {}).get("facts") or {}
            confirm = self._owner.confirm
            manifest, digest = self._ledger.publish(ordered, skipped.values(), facts, safe, confirm=confirm)
            return manifest_event(manifest, str(digest), shards=len(self._plan))


@contextlib.contextmanager
def _named(location: str) -> Iterator[None]:
    """Turn errors of the library and of the file system into one that names the folder."""
    try:
        yield
    except TrainError as error:
        raise CollectError(str(error)) from error
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise CollectError(f"The output folder {location} cannot be used: {as_sentence(error)}") from error


def _document(path: Path, limit_bytes: int, values: int) -> Any:
    """Return a document that a host sent.

    :raises DamagedCopyError: it is missing, too large or damaged
    """
    found = decode(read_bounded(path, limit_bytes=limit_bytes, depth=_DEPTH, values=values))
    if found is None:
        raise DamagedCopyError(f"{path.name} is damaged")
    return found


def _run_of(found: Any) -> JsonObject:
    with checked(RUN):
        run = _RunForm.model_validate(found)
    return {"format": FORMAT, "key": None, "facts": run.facts, "batch_size": run.batch_size}


def _plan_of(found: Any) -> list[Shard]:
    try:
        plan = [Shard.from_dict(one) for one in found]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DamagedCopyError(f"the plan is not a list of shards: {error!r:.200}") from error
    if [one.index for one in plan] != list(range(len(plan))) or not 0 < len(plan) <= SHARDS_LIMIT:
        raise DamagedCopyError("the shards of the plan are not numbered")
    return plan


def _entry_of(found: Any, ledger: Ledger, shard: int) -> FinishedShard:
    """Return the entry of a shard, after a check of every field."""
    with checked(f"the entry of shard {shard}"):
        _EntryForm.model_validate(found)
    entry = FinishedShard(**found)
    if (entry.shard, entry.run) != (shard, ledger.run) or entry.part not in (None, ledger.part_name(shard)):
        raise DamagedCopyError(f"the entry of shard {shard} is not one of this run")
    return entry


def _combined(entries: list[FinishedShard]) -> dict[str, float]:
    try:
        return metrics.combined([entry.metrics for entry in entries])
    except (ArithmeticError, ValueError) as error:
        raise CollectError(f"The metrics of the shards cannot be combined: {as_sentence(error)}") from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
