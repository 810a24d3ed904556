"""Results of a run as a Markdown table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.framework.rows import Bench, Kind, Row, quartiles, ratio

HEADS = ("row", "program", "median", "quartiles", "n", "ratio", "goal")


@dataclass
class Result:
    """Values of a benchmark, and the conditions of its run.

    :param state: measured, refused, skipped, failed or interrupted
    :param values: row -> program -> its values
    :param others: part of the cores that other processes used, before and during the run
    :param is_comparable: false if others used so much that programs are not compared
    :param is_quick: whether it was too small to judge a goal
    """

    name: str
    state: str
    reason: str = ""
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    others: tuple[float, float] = (0.0, 0.0)
    load: tuple[float, float] = (0.0, 0.0)
    is_comparable: bool = True
    is_quick: bool = False
    seconds: float = 0.0
    cpu_s: float = 0.0


def read_values(path: Path, result: Result) -> None:
    """Add the lines that a benchmark has written. The last one may be incomplete."""
    for text in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if not text.endswith("\n"):
            continue
        line = json.loads(text)
        if "note" in line:
            result.notes.append(line["note"])
        elif "versions" in line:
            result.versions |= line["versions"]
        else:
            result.values.setdefault(line["row"], {}).setdefault(line["side"], []).extend(line["values"])


def undeclared(bench: Bench, result: Result) -> list[str]:
    """Return the rows and programs that have values, but that the benchmark does not declare."""
    declared = {row.name: row.sides for row in bench.rows}
    return [
        f"{row}: {side}" for row, sides in result.values.items() for side in sides if side not in declared.get(row, ())
    ]


def lines_of(row: Row, result: Result) -> list[tuple[str, ...]]:
    """Return the lines of the table for a row: one per program that was measured."""
    measured, found = result.values.get(row.name, {}), []
    for side, kind in row.sides.items():
        values = measured.get(side)
        if not values:
            continue
        low, middle, high = quartiles(values)
        words = side if kind is Kind.OURS else f"{side} ({kind.value})"
        base = measured.get(row.base or "")
        times = f"{ratio(values, base):.2f}" if base and side != row.base and result.is_comparable else ""
        spread = f"{number(low)} .. {number(high)}" if len(values) > 1 else ""
        first = f"{row.name}, {row.unit}" if not found else ""
        found.append((first, words, number(middle), spread, str(len(values)), times, ""))
    return [(*line[:-1], verdict) for line, verdict in zip(found, _verdicts(row, result, len(found)), strict=True)]


def _verdicts(row: Row, result: Result, count: int) -> list[str]:
    """Return the words about goals, all in the first of the lines."""
    words = []
    for goal in row.goals:
        is_judged = result.is_comparable and not result.is_quick
        is_met = goal.is_met(result.values.get(row.name, {})) if is_judged else None
        words.append(f"{goal.text(row.unit)}{'' if is_met is None else ': met' if is_met else ': missed'}")
    return ["; ".join(words), *[""] * (count - 1)] if count else []


def number(value: float) -> str:
    """Return a figure with three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, padded for a terminal."""
    widths = [max(len(line[place]) for line in (heads, *lines)) for place in range(len(heads))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (heads, rule, *lines)
    )


def section(bench: Bench, result: Result) -> str:
    """Return the part of the page about one benchmark."""
    parts = [f"## {result.name}", bench.what + "."]
    if result.state != "measured":
        parts.append(f"**{result.state.capitalize()}**: {result.reason}.")
    lines = [line for row in bench.rows for line in lines_of(row, result)]
    if lines:
        parts += [table(HEADS, lines), _conditions(bench, result)]
    parts += [f"- {note}" for note in result.notes]
    return "\n\n".join(parts)


def _conditions(bench: Bench, result: Result) -> str:
    before, during = (f"{100 * part:.0f} %" for part in result.others)
    bases = ", ".join(sorted({row.base for row in bench.rows if row.base}))
    compared = f" The ratio is that to: {bases}." if bases and result.is_comparable else ""
    refused = "" if result.is_comparable else " **Not compared**, because of the load of others."
    peers = "".join(f" {name} {version}." for name, version in sorted(result.versions.items()))
    return (
        f"{result.seconds:.0f} s, {result.cpu_s:.0f} s of CPU. Other processes used {before} of the cores before, "
        f"{during} during the run; load {result.load[0]:.1f} to {result.load[1]:.1f}.{compared}{refused}{peers}"
    )


def markdown(machine: Mapping[str, str], benches: Mapping[str, Bench], results: Sequence[Result]) -> str:
    """Return the whole page."""
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.items())
    sections = [section(benches[result.name], result) for result in results]
    return "\n\n".join(["# Benchmarks", facts, *sections]) + "\n"


def as_json(machine: Mapping[str, str], options: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return machine, options and all values as JSON, with the quartiles of each program."""
    benches = []
    for result in results:
        record = asdict(result)
        record["quartiles"] = {
            row: {side: quartiles(values) for side, values in sides.items() if values}
            for row, sides in result.values.items()
        }
        benches.append(record)
    return json.dumps({"machine": machine, "options": options, "benchmarks": benches}, indent=1) + "\n"
