"""Compares rank 0's lines in task logs with the log on its host: each missing line must be marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: A numbered line, as the rank's script writes it.
NUMBERED = re.compile(rb"NUM (\S+) (\d+) .*?end\n")
_SHOWN = re.compile(r"^\[rank 0\] NUM (\S+) (\d+) .*end$", re.MULTILINE)
_MARK = re.compile(
    r"--- trial (\d+), attempt (\d+): (?:bytes (\d+) to (\d+) |everything from byte (\d+) on )(?:\(\d+\) )?left out"
)


@dataclass
class Shown:
    """Numbered lines and marks in the files of a trial's task log."""

    #: Run -> number of a line -> how often it occurs.
    lines: dict[str, dict[int, int]] = field(default_factory=dict)
    #: Attempt -> byte ranges that are marked as left out.
    marks: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def repeated(self) -> int:
        return sum(count - 1 for counts in self.lines.values() for count in counts.values())


def read(texts: Iterable[str], trial_id: int) -> Shown:
    """Return the numbered lines in the texts of a task log, and the marks of a trial."""
    shown = Shown()
    for text in texts:
        for run, number in _SHOWN.findall(text):
            counts = shown.lines.setdefault(run, {})
            counts[int(number)] = counts.get(int(number), 0) + 1
        for trial, attempt, start, end, rest in _MARK.findall(text):
            if int(trial) == trial_id:
                known = (int(rest), float("inf")) if rest else (int(start), float(end))
                shown.marks.setdefault(int(attempt), []).append(known)
    return shown


def lost(shown: Shown, logs: Mapping[int, tuple[str, bytes]]) -> list[str]:
    """Return the lines that are missing in a task log without a mark.

    :param logs: attempt -> its run, and rank 0's log on the host
    """
    found = []
    for attempt, (run, log) in logs.items():
        there, marks = shown.lines.get(run, {}), shown.marks.get(attempt, [])
        missing = [
            int(line[2]) for line in NUMBERED.finditer(log)
            if int(line[2]) not in there and not any(start < line.end() and line.start() < end for start, end in marks)
        ]  # fmt: skip
        if missing:
            some = f"{missing[0]} to {missing[-1]}"
            found.append(f"{len(missing)} lines of {run} are missing in the task log without a mark ({some}): {marks}")
    return found


def host_logs(state: Path) -> dict[str, bytes]:
    """Return run -> rank 0's log, for every run below a host's folder."""
    found = {}
    for path in state.rglob("log"):
        if path.parent.name == "rank0" or path.parent.name.endswith("rank0"):
            found[path.parent.parent.name] = path.read_bytes()
    return found
