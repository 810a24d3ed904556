"""Command that shows timings of the parts of a batch, and system metrics of the hosts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.terminal.output import cell, dump, is_table, note, short_time, show

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_provider_dtrain.resources.telemetry import MetricRange, NamedStraggler, Profile, TimingTotal
    from airflow_provider_dtrain.terminal.source import Source

#: Named slow ranks that a terminal shows, the latest ones.
STRAGGLERS_MOST = 10


def profile(args: Namespace, source: Source) -> None:
    """Show timings of batches and system metrics of an attempt."""
    found = source.profile(args.trial_id, attempt=args.attempt)
    if not is_table(args):
        dump(args.output, {"trial_id": args.trial_id, **asdict(found)})
        return
    show(args, [_timing(one) for one in found.timings], empty=f"Attempt {found.attempt} has reported no timings yet.")
    _explain(found)
    print()
    show(args, [_metric(one) for one in found.system], empty="The store has no system metrics of this attempt yet.")


def _explain(found: Profile) -> None:
    if any(one.name == "train_batch" for one in found.timings):
        note("train_batch contains backward and step_optimizer: the rows do not add up to the time of a batch.")
    for name in sorted({one.name for one in found.timings if one.total_s is None}):
        note(f"{name} is sampled, one batch out of many: it has no total.")
    for slow in found.slow_ranks:
        note(
            f"Rank {slow.rank} on host '{slow.host}' is slow: it needs {cell(slow.busy_s)} s per step, "
            f"{slow.ratio:.2f} times the median of the other ranks, which wait for it."
        )
    for line in straggler_lines(found.stragglers):
        note(line)


def straggler_lines(found: Sequence[NamedStraggler]) -> list[str]:
    """Return a line for each slow rank that was named while it ran: the latest ones."""
    lines = [
        f"{short_time(one.since)} to {short_time(one.until) if one.until is not None else 'now'}: "
        f"{one.text} {one.advice}"
        for one in found[-STRAGGLERS_MOST:]
    ]
    hidden = len(found) - len(lines)
    return [f"{hidden} earlier slow ranks are in the timeline.", *lines] if hidden > 0 else lines


def _timing(one: TimingTotal) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "timing": one.name,
        "count": one.count,
        "mean": f"{1e3 * one.mean_s:.3f} ms",
        "max": f"{1e3 * one.max_s:.3f} ms",
        "total": "sampled" if one.total_s is None else f"{one.total_s:.3f} s",
    }


def _metric(one: MetricRange) -> dict[str, Any]:
    in_bytes = one.unit.startswith("bytes")
    after = one.unit.removeprefix("bytes") if in_bytes else f" {one.unit}".rstrip()

    def shown(value: float) -> str:
        return (byte_size(value) if in_bytes else cell(round(value, 1))) + after

    return {
        "host": one.host,
        "gpu": one.device if one.rank is None else f"rank {one.rank}",
        "metric": one.metric,
        "min": shown(one.minimum),
        "mean": shown(one.mean),
        "max": shown(one.maximum),
        "samples": one.count,
    }
