"""Views that follow a trial, an experiment or the queue.

They send little over a slow line: a view is drawn again only after a change, and a terminal gets only the lines that
differ.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.resources.gangs import GangSummary
from airflow_provider_dtrain.resources.trials import TrialDetail, TrialSummary
from airflow_provider_dtrain.terminal.output import cell, placement_text
from airflow_provider_dtrain.terminal.safe_streams import unescaped
from airflow_provider_dtrain.terminal.table import table_lines
from airflow_provider_dtrain.terminal.trials import latest_placement, progress_line

POLL_S = 2.0
#: Characters of a sparkline.
SPARK_WIDTH = 40
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class View:
    """The lines of a view, and whether it is the last one."""

    lines: Sequence[str]
    is_last: bool = False


@dataclass
class Screen:
    """A terminal, or a file that gets each view below the one before.

    :param size: returns columns and lines of the terminal
    """

    is_terminal: bool = field(default_factory=lambda: sys.stdout.isatty())
    size: Callable[[], os.terminal_size] = lambda: os.get_terminal_size(sys.stdout.fileno())
    _shown: list[str] = field(default_factory=list)

    @property
    def width(self) -> int | None:
        """Width of the terminal, None for a file."""
        return self.size().columns if self.is_terminal else None

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines in place of those that are shown."""
        new = [escaped(line) for line in lines]
        if not self.is_terminal:
            if new != self._shown:
                print("\n".join(new) + "\n", flush=True)
            self._shown = new
            return
        columns, rows = self.size()
        new = [line[:columns] for line in new[: max(rows - 1, 1)]]
        out = unescaped(sys.stdout)
        out.write(_difference(self._shown, new))
        out.flush()
        self._shown = new


def _difference(old: Sequence[str], new: Sequence[str]) -> str:
    """Return what a terminal whose cursor is below the old lines has to get."""
    text = f"\x1b[{len(old)}A\r" if old else ""
    for number, line in enumerate(new):
        same = number < len(old) and old[number] == line
        text += "\n" if same else f"\x1b[2K{line}\n"
    return text if len(new) >= len(old) else f"{text}\x1b[J"


def watch(
    read: Callable[[int | None], View],
    screen: Screen | None = None,
    *,
    poll_s: float = POLL_S,
    sleep: Callable[[float], None] | None = None,
) -> None:
    """Draw a view again and again, until it is the last one.

    :param read: returns the view for a width of the terminal
    :param sleep: None = ``time.sleep``
    """
    screen = screen or Screen()
    while True:
        view = read(screen.width)
        screen.draw(view.lines)
        if view.is_last:
            return
        (sleep or time.sleep)(poll_s)


def spark(values: Sequence[float | None], width: int = SPARK_WIDTH) -> str:
    """Return numbers as bars. Each bar is the mean of its share of the numbers."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    count = min(width, len(known))
    shares = [known[number * len(known) // count : (number + 1) * len(known) // count] for number in range(count)]
    means = [sum(share) / len(share) for share in shares]
    low, high = min(means), max(means)
    spread = high - low
    if not 0 < spread < float("inf"):
        return _BARS[0] * count
    return "".join(_BARS[round((value - low) / spread * (len(_BARS) - 1))] for value in means)


def queue_lines(gangs: Sequence[GangSummary], rows: Sequence[dict[str, object]], width: int | None) -> list[str]:
    """Return the lines of the queue."""
    waiting = sum(gang.state == "waiting" for gang in gangs)
    head = f"{len(gangs) - waiting} running, {waiting} waiting"
    return [head, *_table(rows, width)] if rows else [head]


def _table(rows: Sequence[dict[str, object]], width: int | None) -> list[str]:
    names = [cell(name.replace("_", " ")) for name in rows[0]]
    return list(table_lines(names, [[cell(value) for value in row.values()] for row in rows], width=width))


def experiment_lines(
    head: str, trials: Sequence[TrialSummary], rows: Sequence[dict[str, object]], width: int | None
) -> list[str]:
    """Return the lines of an experiment: counts by state, then its trials with their rungs."""
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial.state] = counts.get(trial.state, 0) + 1
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no trial yet"
    return [f"{head}: {states}", *(_table(rows, width) if rows else [])]


def trial_lines(
    trial: TrialDetail, curves: Sequence[tuple[str, Sequence[float | None]]], devices: Sequence[str]
) -> list[str]:
    """Return the lines of a trial.

    :param curves: name and values of its metrics, over time
    :param devices: use of its devices in words
    """
    placement = latest_placement(trial)
    where = f" on {placement_text(placement)}" if placement else ""
    facts = [
        ("state", trial.state if trial.position is None else f"{trial.state}, position {trial.position}"),
        ("progress", progress_line(trial)),
        ("expected end", None if trial.progress is None else trial.progress.expected_end),
        ("slots", f"{trial.slots} of {trial.pool}{where}"),
        ("reason", trial.reason),
    ]
    shown = [(name, cell(value)) for name, value in facts if value is not None]
    for name, values in curves:
        last = next((value for value in reversed(values) if value is not None), None)
        shown.append((name, f"{spark(values)}  {cell(last)}"))
    shown += [("devices", text) for text in devices]
    width = max(len(name) for name, _ in shown)
    head = f"Trial {trial.trial_id} of experiment {trial.experiment_id} '{trial.experiment}'"
    return [head, *(f"{name:{width}}  {text}" for name, text in shown)]
