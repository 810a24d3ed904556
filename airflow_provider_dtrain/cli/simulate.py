"""``airflow dtrain simulate``: a job trace under the rules of a pool and under two simpler rules."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.scheduling.model import Host, PoolOptions
from airflow_provider_dtrain.core.simulation.baseline_policies import FirstInFirstOut, PriorityWithoutReservation
from airflow_provider_dtrain.core.simulation.queue_policy import SimulatedQueue
from airflow_provider_dtrain.core.simulation.report import Summary, summarise
from airflow_provider_dtrain.core.simulation.simulator import SimulatedJob, SimulatedPolicy, hosts_of, simulate, split
from airflow_provider_dtrain.core.simulation.trace import KNOWN, between, read_jobs, with_not_preemptible
from airflow_provider_dtrain.errors import ConfigError, Problem, UnplaceableError, UsageError
from airflow_provider_dtrain.terminal.output import dump, is_table, note, show
from airflow_provider_dtrain.terminal.safe_streams import unescaped

if TYPE_CHECKING:
    from argparse import Namespace

    #: Creates a new rule.
    Maker = Callable[[list[Host], PoolOptions], SimulatedPolicy]

#: Name of the pool's own rule in the output.
OURS = "this pool"


@command
def run(args: Namespace) -> None:
    """Compare waiting times, completion and use of the hosts under three rules."""
    jobs = _chosen(args)
    hosts = hosts_of(args.hosts)
    options = _options(args)
    kept, left_out = split(jobs, hosts, options)
    _name_left_out(left_out, len(jobs))
    if not kept:
        raise UnplaceableError(f"None of the {len(jobs)} jobs fits {_words(args.hosts)}. Use more or larger --hosts.")
    makers: dict[str, Maker] = {
        OURS: lambda hosts, options: SimulatedQueue(hosts, options, cost_s=args.cost_s),
        "first in, first out": FirstInFirstOut,
        "no reservation": PriorityWithoutReservation,
    }
    found = {}
    for name, make in makers.items():
        with _progress(name, len(kept)) as on_progress:
            outcome = simulate(kept, hosts, make(hosts, options), cost_s=args.cost_s, on_progress=on_progress)
        found[name] = summarise(outcome)
    _show(args, found, left_out)


def _chosen(args: Namespace) -> list[SimulatedJob]:
    if args.from_s is not None and args.to_s is not None and args.from_s >= args.to_s:
        raise UsageError(f"--from {args.from_s:g} s is not before --to {args.to_s:g} s: no job lies between.")
    jobs = between(_read(args.trace), args.from_s, args.to_s, args.limit)
    if not jobs:
        raise UsageError(f"No job of {_source(args.trace)} was submitted between --from and --to, or --limit is 0.")
    return with_not_preemptible(jobs, args.not_preemptible, args.seed)


def _source(path: str) -> str:
    return "standard input" if path == "-" else path


def _read(path: str) -> list[SimulatedJob]:
    is_input = path == "-"
    try:
        with open(0 if is_input else path, encoding="utf-8-sig", newline="", closefd=not is_input) as file:
            return read_jobs(file, source=_source(path), on_ignored=_name_ignored)
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason} at byte {error.start}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = f"the trace cannot be read: {reason}. Name a CSV file, or - for standard input"
    raise ConfigError([Problem(path="", message=problem)], source=_source(path))


def _name_ignored(names: Sequence[str]) -> None:
    listed = ", ".join(repr(name) for name in names)
    note(f"Warning: unknown columns are ignored: {listed}. Known: {', '.join(KNOWN)}.")


def _options(args: Namespace) -> PoolOptions:
    given = {
        "preemption": args.preemption,
        "max_wait_s": args.max_wait,
        "protected_share": args.protected_share,
        "fresh_s": args.fresh,
        "young_s": args.young,
        "min_run_s": args.min_run,
        "reservations": args.reservations,
        "fit": args.fit,
        "allow_heterogeneous": args.heterogeneous,
    }
    return PoolOptions(**{name: value for name, value in given.items() if value is not None})


def _words(groups: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{number}x{slots}" for number, slots in groups)


def _name_left_out(left_out: Counter[int], jobs: int) -> None:
    if left_out:
        parts = [f"{number} of {slots} slots" for slots, number in sorted(left_out.items())]
        note(f"Left out {left_out.total()} of {jobs} jobs that these hosts can never serve: {', '.join(parts)}.")


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda ended: bar.update(task, completed=ended)


def _show(args: Namespace, found: dict[str, Summary], left_out: Counter[int]) -> None:
    if not is_table(args):
        rules = [{"rule": name, **asdict(summary)} for name, summary in found.items()]
        dump(args.output, {"hosts": _words(args.hosts), "left_out": dict(sorted(left_out.items())), "rules": rules})
        return
    columns = {name: _cells(summary) for name, summary in found.items()}
    labels = list(columns[OURS])
    show(args, [{"": label, **{name: cells[label] for name, cells in columns.items()}} for label in labels])
    note("wait = completion - submission - duration. wide: more slots than the largest host has.")


def _cells(summary: Summary) -> dict[str, Any]:
    return {
        "jobs": str(summary.jobs),
        "wait, mean": _time(summary.mean_wait_s),
        "wait, p95": _time(summary.p95_wait_s),
        "wait of wide jobs, p99": _time(summary.p99_wide_wait_s),
        "wait, longest": _time(summary.longest_wait_s),
        "completion, mean": _time(summary.mean_completion_s),
        "makespan": _time(summary.makespan_s),
        "utilisation": f"{summary.utilisation_ratio:.1%}",
        "fragmentation": f"{summary.fragmentation_ratio:.1%}",
        "preemptions": str(summary.preemptions),
        "lost to preemptions": f"{summary.lost_ratio:.2%}",
    }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.2f} {unit}"
    return f"{seconds:.1f} s"
