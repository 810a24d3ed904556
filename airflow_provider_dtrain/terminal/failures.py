"""Causes of failures in a terminal: of a trial, and of the trials of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.terminal.provenance import change_text

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.lifecycle.raised_errors import RaisedError
    from airflow_provider_dtrain.resources.failures import Baseline, ExperimentFailures, TrialFailure

#: Frames, lines of the log, changes and ids that are shown.
_FRAMES: Final = 5
_LINES: Final = 8
_CHANGES: Final = 10
_IDS: Final = 8


def failure_lines(found: TrialFailure) -> dict[str, Any]:
    """Return the cause of a trial's failure as lines of a terminal, the cause first."""
    same = ", ".join(map(str, found.same_attempts))
    where = "" if found.log is None else f"log of rank {found.log.rank}"
    return {
        "failure": found.cause,
        "failed": "before its ranks were started" if found.phase == "start" else None,
        "failed_before": f"in the same way: attempts {same}" if same else None,
        "error": error_text(found.raised) or "\n".join(found.details.split("\n")[-_LINES:]) or None,
        where or "log": None if found.log is None else "\n".join(found.log.lines[-_LINES:]),
        **({} if found.baseline is None else _changes(found.baseline)),
        "try": "\n".join(
            step.text if step.command is None else f"{step.text.rstrip('.')}: {step.command}" for step in found.steps
        ),
    }


def error_text(raised: Sequence[RaisedError]) -> str | None:
    """Return the errors of a traceback with the user's own frames, None without an error."""
    lines = []
    for number, one in enumerate(raised):
        lines.append(f"after {one.text}" if number else one.text)
        for frame in one.frames[:_FRAMES]:
            where = f" in {frame.function}" if frame.function else ""
            lines.append(f"  at {frame.file}:{frame.line}{where}{f': {frame.code}' if frame.code else ''}")
    return "\n".join(lines) or None


def _changes(baseline: Baseline) -> dict[str, Any]:
    of = "" if baseline.is_of_experiment else f" of experiment {baseline.experiment_id}"
    name = f"changed since trial {baseline.trial_id}{of}"
    more = len(baseline.changes) - _CHANGES + baseline.more
    rows = [change_text(one) for one in baseline.changes[:_CHANGES]] + ([f"and {more} more"] if more > 0 else [])
    return {name: "\n".join(rows) or "nothing that was recorded"}


def experiment_failure_lines(found: ExperimentFailures) -> dict[str, Any]:
    """Return the failed trials of an experiment by cause, as lines of a terminal."""
    if not found.failed:
        return {}
    rows = [f"{one.count} x {one.cause} ({_ids(one.trials, one.count)})" for one in found.groups]
    return {"failures": found.text, "causes": "\n".join(rows)}


def _ids(trials: Sequence[int], count: int) -> str:
    shown = ", ".join(map(str, trials[:_IDS]))
    more = f" and {count - _IDS} more" if count > _IDS else ""
    return f"{'trial' if count == 1 else 'trials'} {shown}{more}"
