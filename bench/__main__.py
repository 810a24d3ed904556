"""Benchmarks of this package beside other programs, in one run. docs/benchmarks.md explains each row.

    python -m bench list
    python -m bench run kill launch --quick
    python -m bench run all --json figures.json --markdown figures.md

It compares nothing while other processes use more of the cores than ``--limit-load``, unless ``--anyway`` is given. An
interrupt ends everything that was started, and prints what was measured until then. Exit status 1: something was
refused, failed or interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.framework import containment, machine, report, rows
from bench.framework.containment import Interrupts
from bench.framework.report import Result
from bench.framework.rows import Bench

#: Measured first, because its rows are the limits of the machine.
FIRST = "machine"
#: A quick run takes less than 60 s on an idle machine.
DEADLINE_S, QUICK_DEADLINE_S = 7200.0, 600.0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print all benchmarks and their rows")
    run = commands.add_parser("run", help="measure, print the table")
    run.add_argument("names", nargs="+", metavar="NAME", choices=[*rows.names(), "all"])
    run.add_argument("--quick", action="store_true", help="fewer and smaller rounds, below 60 s each")
    run.add_argument("--rounds", type=int, default=0, help="instead of each benchmark's own number")
    run.add_argument("--json", type=Path, metavar="FILE", help="write all values")
    run.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    run.add_argument("--limit-load", type=float, default=0.1, metavar="PART", help="of the cores (default 0.1)")
    run.add_argument("--anyway", action="store_true", help="compare under any load")
    return parser.parse_args(arguments)


def chosen(names: Sequence[str]) -> list[str]:
    """Return the benchmarks to run, each once, that of the machine first."""
    wanted = rows.names() if "all" in names else list(dict.fromkeys(names))
    return [FIRST, *(name for name in wanted if name != FIRST)]


def measure(name: str, bench: Bench, options: argparse.Namespace, folder: Path, interrupts: Interrupts) -> Result:
    """Run one benchmark in a process of its own."""
    if why := bench.missing():
        return Result(name, "skipped", why)
    before = machine.load_of_others()
    if before > options.limit_load and not options.anyway:
        limit = f"the limit is {options.limit_load:.0%}, see --limit-load and --anyway"
        return Result(name, "refused", f"Other processes use {before:.0%} of the cores, {limit}")
    result, values, log = Result(name, "measured"), folder / f"{name}.jsonl", folder / f"{name}.log"
    rounds = options.rounds or bench.rounds[options.quick]
    began, load = machine.usage(), os.getloadavg()[0]
    reason = containment.run_contained(
        containment.child_command(name, values, rounds=rounds, is_quick=options.quick),
        environment={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": import_path()},
        log=log,
        deadline_s=QUICK_DEADLINE_S if options.quick else DEADLINE_S,
        interrupts=interrupts,
    )
    ended = machine.usage()
    during = ended.others_since(began)
    report.read_values(values, result)
    result.others, result.load = (before, during), (load, os.getloadavg()[0])
    result.is_quick = options.quick
    result.is_comparable = options.anyway or during <= options.limit_load
    result.seconds, result.cpu_s = ended.at - began.at, ended.own_s - began.own_s
    if reason:
        result.state = "interrupted" if interrupts.count else "failed"
        tail = log.read_text(errors="replace").strip()[-2000:]
        result.reason = reason if interrupts.count else f"{reason}\n\n```\n{tail}\n```\n"
    elif strange := report.undeclared(bench, result):
        result.state, result.reason = "failed", f"rows that it does not declare: {', '.join(strange)}"
    return result


def import_path() -> str:
    """Return the path on which the benchmark finds this repository."""
    return os.pathsep.join([str(rows.FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(options: argparse.Namespace) -> int:
    """Measure all chosen benchmarks, print each of them, and write the files."""
    facts, results = machine.description(), []
    benches = {name: rows.load(name) for name in chosen(options.names)}
    containment.adopt_orphans()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Interrupts().noted() as interrupts:
        # PostgreSQL runs as another user.
        Path(folder).chmod(0o711)
        for name, bench in benches.items():
            if interrupts.count:
                break
            results.append(measure(name, bench, options, Path(folder), interrupts))
            print("\n" + report.section(bench, results[-1]), flush=True)
    facts["to"] = time.strftime("%H:%M:%S")
    if options.markdown:
        options.markdown.write_text(report.markdown(facts, benches, results))
    if options.json:
        told = {name: str(value) for name, value in vars(options).items()}
        options.json.write_text(report.as_json(facts, told, results))
    return int(any(result.state not in ("measured", "skipped") for result in results))


def list_all() -> None:
    """Print all benchmarks and their rows."""
    for name in rows.names():
        bench = rows.load(name)
        print(f"{name}: {bench.what}")
        for row in bench.rows:
            print(f"  {row.name}, {row.unit}: {row.what}. {', '.join(row.sides)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parsed(arguments)
    if options.command == "list":
        list_all()
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
