"""``airflow dtrain trials profile``: timings of the parts of a batch, and system metrics of the hosts.

Both are in the store. Only a host whose telemetry is not there is asked itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.event_log import read_samples
from airflow_provider_dtrain.core.series.metrics import SAMPLED_TIMINGS, SYSTEM_METRICS, system_ranges, total_timings
from airflow_provider_dtrain.errors import DtrainError, NotFoundError
from airflow_provider_dtrain.hosts.channel.answers import piece_of
from airflow_provider_dtrain.terminal.output import cell, dump, is_table, note, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store

CHUNK_BYTES = 2**20
CALL_TIMEOUT_S = 30.0
#: Time buckets of a question that needs only totals.
FEWEST_BUCKETS = 10
#: Most bytes that are read of a host's samples: more than one of their files has.
SAMPLES_MOST_BYTES = 64 << 20


@command
def profile(args: Namespace) -> None:
    """Show timings of batches and system metrics of an attempt."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    view = _chosen(hook.store, args)
    timings = _timings(hook.store, view)
    system = _system(hook, view)
    if not is_table(args):
        dump(args.output, {"trial": view.trial_id, "attempt": view.number, "timings": timings, "system": system})
        return
    show(args, [_timing_row(row) for row in timings], empty=f"Attempt {view.number} has reported no timings yet.")
    _explain(timings)
    _name_slow_ranks(hook.store, view)
    print()
    show(args, [_system_row(row) for row in system], empty="No system metrics could be read.")


def _chosen(store: Store, args: Namespace) -> AttemptView:
    trial = store.trials.get(args.trial_id)
    if args.attempt is None:
        return store.attempts.get(trial.attempt_id)
    for view in store.attempts.of_trial(trial.trial_id):
        if view.number == args.attempt:
            return view
    raise NotFoundError(f"Trial {trial.trial_id} has no attempt {args.attempt}; it has {trial.attempts}.")


def _timings(store: Store, view: AttemptView) -> list[dict[str, Any]]:
    """Return a row per rank and timing: the exact sums of the ranks' events, or those of the telemetry without them."""
    by_rank: dict[int, list[Any]] = {}
    for event in store.events.of_attempt(view.attempt_id, kinds=("timings",)):
        rank = event.stream.removeprefix("rank").partition(".")[0]
        by_rank.setdefault(int(rank) if rank.isdigit() else -1, []).append(event.body)
    if by_rank:
        return [row for rank, bodies in sorted(by_rank.items()) for row in _rank_timings(rank, bodies)]
    totals = store.telemetry.timings(view.trial_id, view.number, FEWEST_BUCKETS).totals
    return [
        {
            "rank": one.rank,
            "timing": one.name,
            "count": one.count,
            "total_s": one.total_s,
            "mean_s": one.mean_s,
            "max_s": one.max_s,
            "sampled": one.total_s is None,
        }
        for one in totals
    ]


def _rank_timings(rank: int, summaries: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for name, sums in total_timings(summaries).items():
        sampled = name in SAMPLED_TIMINGS
        total = {"total_s": None} if sampled else {}
        rows.append({"rank": rank, "timing": name, **sums, **total, "sampled": sampled})
    return rows


def _explain(timings: list[dict[str, Any]]) -> None:
    names = {row["timing"] for row in timings}
    if "train_batch" in names:
        note("train_batch contains backward and step_optimizer: the rows do not add up to the time of a batch.")
    for name in sorted(names & SAMPLED_TIMINGS):
        note(f"{name} is sampled, one batch out of many: it has no total.")


def _name_slow_ranks(store: Store, view: AttemptView) -> None:
    found = store.telemetry.step_times(view.trial_id, view.number)
    rows = {row.rank: row for row in found.ranks}
    for rank in found.slow_ranks:
        row = rows[rank]
        note(
            f"Rank {rank} on host '{row.host}' is slow: it needs {cell(row.median_busy_s)} s per step, "
            f"{row.ratio or 0:.2f} times the median of the gang, which waits for it."
        )


def _system(hook: DtrainHook, view: AttemptView) -> list[dict[str, Any]]:
    """Return a row per host, device and metric, from the store, or from a host whose telemetry is not there."""
    rows = [
        {
            "host": one.host,
            "gpu": one.device or None,
            "metric": one.metric,
            "unit": one.unit,
            "min": one.minimum,
            "mean": one.mean,
            "max": one.maximum,
            "count": one.count,
        }
        for one in hook.store.telemetry.ranges(view.trial_id, view.number)
    ]
    stored = {row["host"] for row in rows}
    for host in view.placement if view.run else ():
        if host not in stored:
            rows += _read_from(hook, host, str(view.run))
    return rows


def _read_from(hook: DtrainHook, host: str, run: str) -> list[dict[str, Any]]:
    """Return the rows of a host from its own file, none with a note when it cannot be read."""
    try:
        ranges = system_ranges(read_samples(_samples(hook, host, run)))
    except (DtrainError, TimeoutError) as error:
        note(f"The system metrics of host '{host}' cannot be read: {error}")
        return []
    return [
        {"host": host, "gpu": device or None, "metric": name, "unit": SYSTEM_METRICS[name], **found}
        for (device, name), found in sorted(ranges.items(), key=lambda pair: pair[0][0])
    ]


def _samples(hook: DtrainHook, host: str, run: str) -> bytes:
    """Return the complete lines of a run's samples on a host."""
    link = hook.link(hook.store.hosts.get(host))
    data = bytearray()
    while len(data) < SAMPLES_MOST_BYTES:
        call = link.call("read", run=run, stream="samples", offset=len(data), length=CHUNK_BYTES)
        piece = piece_of(host, call.result(CALL_TIMEOUT_S), offset=len(data), length=CHUNK_BYTES)
        data += piece.data
        # Only the last part of the file is shorter.
        if len(piece.data) < CHUNK_BYTES or len(data) >= piece.size:
            break
    return bytes(data[: data.rfind(b"\n") + 1])


def _timing_row(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: f"{1e3 * row[name]:.3f} ms" for name in ("mean_s", "max_s")}
    return {
        "rank": row["rank"],
        "timing": row["timing"],
        "count": int(row["count"]),
        "mean": times["mean_s"],
        "max": times["max_s"],
        "total": "sampled" if row["sampled"] else f"{row['total_s']:.3f} s",
    }


def _system_row(row: dict[str, Any]) -> dict[str, Any]:
    in_bytes = row["unit"].startswith("bytes")
    after = row["unit"].removeprefix("bytes") if in_bytes else f" {row['unit']}"

    def shown(value: float) -> str:
        return (byte_size(value) if in_bytes else cell(round(float(value), 1))) + after

    return {
        "host": row["host"],
        "gpu": row["gpu"],
        "metric": row["metric"],
        **{name: shown(row[name]) for name in ("min", "mean", "max")},
        "samples": int(row["count"]),
    }
