"""Metrics of a program that does not use the training library: JSON lines in the file that DTRAIN_METRICS names.

A line is ``{"step": 3, "metrics": {"loss": 0.4}}``, or with ``validation`` instead of ``metrics``. The supervisor of
rank 0's host writes them to the rank's events file in the form of the training library, with the questions to the
searcher. A line that it cannot use is named in the rank's log and skipped.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import time
from typing import Any

from ..file_access import read_json, write_all
from ..files.events import encode_event
from ..files.layout import RunFolder
from ..names import Json

NAME = "metrics.jsonl"
LINE_LIMIT = 64 << 10
#: Bytes of a file that are read, in one check and in all. An events file of the training library has the same limit.
READ_AT_ONCE, READ_IN_ALL = 1 << 20, 256 << 20
#: Bad lines that are named. Later ones are counted only.
NAMED_LIMIT = 20
METRICS_LIMIT, NAME_LIMIT = 1000, 256
_STEP_LIMIT = 1 << 53
_UNITS = ("batches", "records", "epochs")


class _BadLine(Exception):
    """A line cannot be used. The message says why, and what to write instead."""


class MetricsFile:
    """Reader of one rank's metrics file.

    :param rank_folder: folder of rank 0
    :param context: the run's context: configuration, hyperparameters and rungs
    """

    def __init__(self, folder: RunFolder, rank_folder: str, context: Json) -> None:
        self._folder = folder
        self._path = os.path.join(rank_folder, NAME)
        self._events_path = os.path.join(rank_folder, "events")
        self._log_path = os.path.join(rank_folder, "log")
        self._rungs = sorted(rung for rung in _items(context.get("rungs")) if type(rung) is int)
        config = context.get("config")
        searcher = config.get("searcher") if isinstance(config, dict) else None
        self._searcher: Json = searcher if isinstance(searcher, dict) else {}
        self._hparams = context.get("hparams")
        self._fd = -1
        self._seq = self._lines = self._bad = self._offset = 0
        self._rest = b""
        self._skips = self._closed = False
        self._asked = -1

    def check(self, *, final: bool = False) -> None:
        """Read the new lines. Never raises an OSError.

        :param final: the program has ended, so a last line without a newline is whole
        """
        try:
            while not self._closed and self._read_piece() and final:
                pass
            if final and self._rest and not self._closed:
                self._take(self._rest)
                self._rest = b""
        except OSError:
            # A full disk costs metrics, not the run.
            self._closed = True

    def is_stopped(self) -> bool:
        """Return whether the searcher has stopped the trial at a rung that this file asked about."""
        if self._asked < 0:
            return False
        answers = read_json(self._folder.file("decisions.json")) or {}
        return any(answers.get(str(rung)) == "stop" for rung in range(self._asked + 1))

    def _read_piece(self) -> bool:
        """Read the next bytes. Return whether more are there."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            data = os.pread(fd, READ_AT_ONCE, self._offset)
        finally:
            os.close(fd)
        if not data:
            return False
        if self._fd < 0 and not self._open():
            return False
        self._offset += len(data)
        self._split(data)
        if self._offset > READ_IN_ALL:
            self._warn(f"The file has more than {READ_IN_ALL:,} bytes. The rest is not read. Write fewer lines.")
            self._closed = True
        return len(data) == READ_AT_ONCE

    def _open(self) -> bool:
        """Open the events file. Return False if the training library writes it."""
        if os.path.exists(self._events_path):
            self._warn("It is not read, because this program uses the training library. Call ctx.report instead.")
            self._closed = True
            return False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._events_path, flags, 0o600)
        return True

    def _split(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._skips:
                self._take(line)
            self._skips = False
        if len(self._rest) > LINE_LIMIT:
            if not self._skips:
                self._take(self._rest)
            self._skips = True
            self._rest = b""

    def _take(self, line: bytes) -> None:
        """Write the events of one line, or name the line."""
        self._lines += 1
        if not line.strip():
            return
        try:
            for kind, fields in self._events_of(line):
                self._seq += 1
                event = {"seq": self._seq, "at": round(time.time(), 6), "kind": kind, **fields}
                write_all(self._fd, encode_event(event))
        except _BadLine as error:
            self._bad += 1
            if self._bad <= NAMED_LIMIT:
                self._warn(f"Line {self._lines} is ignored: {error}")
            if self._bad == NAMED_LIMIT:
                self._warn("Further lines like this are not named.")

    def _events_of(self, line: bytes) -> list[tuple[str, Json]]:
        if len(line) > LINE_LIMIT:
            raise _BadLine(f"a line may have at most {LINE_LIMIT:,} bytes.")
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            raise _BadLine('it must be JSON, for example {"step": 3, "metrics": {"loss": 0.4}}.') from None
        if not isinstance(document, dict) or ("metrics" in document) == ("validation" in document):
            raise _BadLine('it must be an object with "step" and either "metrics" or "validation".')
        step = document.get("step")
        if type(step) is not int or not 0 <= step < _STEP_LIMIT:
            raise _BadLine(f'"step" must be a whole number of at least 0, got {str(step)[:40]}.')
        epoch = _epoch(document)
        place: Json = {} if epoch is None else {"epoch": epoch}
        if "metrics" in document:
            return [("report", {"step": step, "metrics": _numbers(document["metrics"], "metrics"), **place})]
        values = _numbers(document["validation"], "validation")
        return [("validation", {"step": step, "metrics": values, **place}), *self._question(step, values, document)]

    def _question(self, step: int, values: Json, document: Json) -> list[tuple[str, Json]]:
        """Return the question to the searcher if a validation has reached a further rung."""
        if not self._rungs:
            return []
        metric = self._searcher.get("metric")
        try:
            if metric not in values:
                raise _BadLine(f"a validation needs the metric {metric!r}, which searcher.metric names.")
            units = self._units(step, values, document)
        except _BadLine as error:
            self._warn(f"Line {self._lines} takes no part in the search: {error}")
            return []
        rung = bisect.bisect_right(self._rungs, units) - 1
        if rung <= self._asked:
            return []
        self._asked = rung
        return [("rung", {"rung": rung, "units": units, "metric": values[metric], "step": step})]

    def _units(self, step: int, values: Json, document: Json) -> int:
        """Return the length of training so far, in the unit of the search."""
        length = self._searcher.get("max_length")
        unit = next(iter(length), "batches") if isinstance(length, dict) else self._searcher.get("time_metric")
        if unit == "batches":
            return step
        if unit not in _UNITS:
            value = values.get(str(unit))
            if value is None:
                raise _BadLine(f"a validation needs the metric {unit!r}, which searcher.time_metric names.")
            return int(value)
        field = "epoch" if unit == "epochs" else "records"
        found = document.get(field)
        if unit == "epochs" and (epoch := _epoch(document)) is not None:
            # A sum of fractions may be slightly below the whole number.
            found = int(epoch + 1e-6)
        batch = self._hparams.get("global_batch_size") if isinstance(self._hparams, dict) else None
        if found is None and unit == "records" and type(batch) is int:
            return step * batch
        if type(found) is not int or found < 0:
            raise _BadLine(f'the search counts {unit}, so a validation needs "{field}": the number of finished {unit}.')
        return found

    def _warn(self, message: str) -> None:
        """Write a line to the rank's log, which the task log shows."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._log_path, flags, 0o600)
        try:
            write_all(fd, f"dtrain: DTRAIN_METRICS: {message}\n".encode("utf-8", "replace"))
        finally:
            os.close(fd)


def _epoch(document: Json) -> float | None:
    """Return the number of trained epochs, None if it is no number of at least 0."""
    epoch = document.get("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, (int, float)):
        return None
    return epoch if 0 <= epoch < _STEP_LIMIT else None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(values: Any, field: str) -> Json:
    """Return metrics with None for NaN and infinities."""
    if not isinstance(values, dict) or not 0 < len(values) <= METRICS_LIMIT:
        raise _BadLine(f'"{field}" must be an object of 1 to {METRICS_LIMIT:,} names with numbers.')
    found: Json = {}
    for name, value in values.items():
        if not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
            raise _BadLine(f"a name must have 1 to {NAME_LIMIT} printable characters, got {name[:40]!r}.")
        if value is not None and type(value) not in (int, float):
            raise _BadLine(f"{name[:40]!r} must be a number, got {str(value)[:40]!r}.")
        # Integers of thousands of digits are no floats.
        is_finite = value is not None and abs(value) < 1e300 and math.isfinite(value)
        found[name] = value if is_finite else None
    return found
