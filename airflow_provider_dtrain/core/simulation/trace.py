"""Reader for traces: jobs from the lines of a CSV file. Every error names its line."""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from airflow_provider_dtrain.core.simulation.simulator import SimulatedJob
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Columns that a trace must have. All other columns may be missing or empty.
NEEDED = ("job_id", "submit_s", "gpus", "duration_s")
#: All columns that are read.
KNOWN = (*NEEDED, "group", "vc", "priority", "max_runtime_s")
MOST_SLOTS = 1_000_000
_MOST_PROBLEMS = 20

_Number = TypeVar("_Number", int, float)
_Row = Mapping[str | None, str | list[str] | None]


def read_jobs(
    lines: Iterable[str], *, source: str = "trace", on_ignored: Callable[[list[str]], None] | None = None
) -> list[SimulatedJob]:
    """Return the jobs in the order of the lines.

    The columns are job_id, submit_s, gpus and duration_s. The columns group (or vc), priority and max_runtime_s
    are optional, and all other columns are ignored.

    :param lines: text with a header, e.g. an open file
    :param source: for messages: the path, or ``standard input``
    :param on_ignored: called with the ignored columns, if there are any
    :raises ConfigError: names every line that cannot be used, up to 20 of them
    """
    reader = csv.DictReader(lines, strict=True)
    found = _Found(source)
    header = _header(reader, found)
    found.check_header(header)
    ignored = [name for name in header if name not in KNOWN]
    if ignored and on_ignored is not None:
        on_ignored(ignored)
    for number, row in _rows(reader, found):
        found.add(number, row)
    return found.jobs_or_raise()


def with_not_preemptible(jobs: Iterable[SimulatedJob], share: float, seed: int) -> list[SimulatedJob]:
    """Return the jobs, with about ``share`` of them not preemptible.

    :param share: 0 .. 1 of the jobs, chosen by a hash of seed and job id: the same for every other option
    """
    chosen = []
    for job in jobs:
        is_fixed = zlib.crc32(f"{seed}\0{job.job_id}".encode()) < share * 2**32
        chosen.append(replace(job, is_preemptible=False) if is_fixed else job)
    return chosen


def between(
    jobs: Iterable[SimulatedJob], begin_s: float | None, end_s: float | None, limit: int | None
) -> list[SimulatedJob]:
    """Return the jobs that were submitted in a part of the trace, by submission.

    :param begin_s: seconds since the trace began; None = from its start
    :param end_s: exclusive; None = to its end
    :param limit: maximum number of jobs; None = all
    """
    low = -math.inf if begin_s is None else begin_s
    high = math.inf if end_s is None else end_s
    chosen = sorted((job for job in jobs if low <= job.submit_s < high), key=lambda job: job.submit_s)
    return chosen[:limit]


def _header(reader: csv.DictReader[str], found: _Found) -> list[str]:
    try:
        names = [name.strip().removeprefix("\ufeff") for name in reader.fieldnames or ()]
    except csv.Error as error:
        found.refuse(1, f"is not valid CSV: {error}")
        raise found.error() from None
    reader.fieldnames = names
    return names


def _rows(reader: csv.DictReader[str], found: _Found) -> Iterator[tuple[int, _Row]]:
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        found.refuse(reader.reader.line_num, f"is not valid CSV: {error}")


class _Found:
    def __init__(self, source: str) -> None:
        self.source = source
        self.jobs: list[SimulatedJob] = []
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self.more = 0

    def refuse(self, line: int, message: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(path=f"line {line}", message=message))
        else:
            self.more += 1

    def error(self) -> ConfigError:
        more = [Problem(path="", message=f"and {self.more} more")] if self.more else []
        return ConfigError([*self.problems, *more], source=self.source)

    def check_header(self, names: list[str]) -> None:
        missing = [name for name in NEEDED if name not in names]
        if not names:
            self.refuse(1, f"the file is empty; it needs a header with the columns {', '.join(NEEDED)}")
        elif missing:
            needed = f"a trace needs {', '.join(NEEDED)}, and may have group (or vc), priority and max_runtime_s"
            self.refuse(1, f"no column {', '.join(missing)} among {', '.join(names)}; {needed}")
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            self.refuse(1, f"two columns are called {', '.join(doubled)}")
        if self.problems:
            raise self.error()

    def jobs_or_raise(self) -> list[SimulatedJob]:
        if not self.jobs and not self.problems:
            self.refuse(1, "no jobs follow the header")
        if self.problems:
            raise self.error()
        return self.jobs

    def add(self, line: int, row: _Row) -> None:
        if None in row:
            self.refuse(line, f"has {len(row[None] or ())} more values than the header has columns")
            return
        problems: list[str] = []
        job = _job(_Cells(row, problems))
        if job is None:
            for problem in problems:
                self.refuse(line, problem)
        elif job.job_id in self.lines:
            self.refuse(line, f"job_id {job.job_id!r} is also in line {self.lines[job.job_id]}")
        else:
            self.lines[job.job_id] = line
            self.jobs.append(job)


class _Cells:
    def __init__(self, row: _Row, problems: list[str]) -> None:
        self.row = row
        self.problems = problems

    def text(self, name: str) -> str:
        value = self.row.get(name)
        return value.strip() if isinstance(value, str) else ""

    def seconds(self, name: str) -> float:
        return self._number(name, float, "a number of seconds from 0 on", math.inf)

    def whole(self, name: str, least: int, most: int) -> int:
        return self._number(name, int, f"a whole number from {least} to {most}", most, least)

    def _number(self, name: str, kind: Callable[[str], _Number], wanted: str, most: float, least: float = 0) -> _Number:
        text = self.text(name)
        try:
            value = kind(text)
            if least <= value <= most and math.isfinite(value) and "_" not in text:
                return value
        except ValueError:
            pass
        self.problems.append(f"{name} is {text[:40]!r}; it must be {wanted}" if text else f"{name} is missing")
        return kind("1")


def _job(cells: _Cells) -> SimulatedJob | None:
    if not cells.text("job_id"):
        cells.problems.append("job_id is missing")
    limit = cells.seconds("max_runtime_s") if cells.text("max_runtime_s") else None
    duration = cells.seconds("duration_s")
    job = SimulatedJob(
        job_id=cells.text("job_id"),
        submit_s=cells.seconds("submit_s"),
        slots=cells.whole("gpus", 0, MOST_SLOTS),
        duration_s=duration if limit is None else min(duration, limit),
        group=cells.text("group") or cells.text("vc"),
        priority=cells.whole("priority", 1, 99) if cells.text("priority") else 42,
        max_runtime_s=limit,
    )
    return None if cells.problems else job
