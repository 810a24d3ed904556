"""``dtrain trials watch`` and ``experiments watch``: views that survive a server that restarts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.client.answers import ReportedMetric, ReportedMetrics
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.resources.gangs import GangSummary
from airflow_provider_dtrain.resources.trials import TrialSummary
from airflow_provider_dtrain.terminal.experiments import progress_text, state_text
from airflow_provider_dtrain.terminal.output import cell, note
from airflow_provider_dtrain.terminal.trials import hparams_text, latest_placement, summary_of
from airflow_provider_dtrain.terminal.watch import View, experiment_lines, trial_lines, watch

#: Metrics, and points of each, in the view of a trial. A sparkline has 40 bars.
METRICS_MOST, POINTS = 6, 60
#: Reports from which the speed is computed.
_RECENT = 20
_TRIALS_MOST = 200


class PatientSource(ServerSource):
    """Records of a view: unchanged ones are not sent again, and a server that restarts is waited for."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, keep=True)
        self.patience = Patience(session, note)

    def gangs(self, pool: str | None) -> list[GangSummary]:
        """Return waiting and running gangs, the running ones first."""
        return self.patience.of(lambda: super(PatientSource, self).gangs(pool))


def watch_trial(args: Namespace) -> None:
    """Follow a trial: state, progress, speed, metrics and GPUs, until it ends."""
    session = session_of(args)
    patience = Patience(session, note)
    watch(lambda _: patience.of(lambda: _trial(session, args.trial_id)))


def _trial(session: Session, trial_id: int) -> View:
    trial = ServerSource(session, keep=True).trial(trial_id)
    answer = session.get(f"/trials/{trial_id}/curves", keep=True, max_points=POINTS)
    series = answer.record(ReportedMetrics).series[:METRICS_MOST]
    curves = [(f"{one.group} {one.name}", one.y) for one in series]
    devices = _devices(session, trial_id) if latest_placement(trial) else []
    lines = trial_lines(trial, curves, devices)
    if (speed := _speed(series)) is not None:
        lines.append(speed_text(speed, trial.hparams))
    return View(lines=lines, is_last=trial.state in TRIAL_ENDED)


def speed_text(batches_per_s: float, hparams: Mapping[str, Any]) -> str:
    """Return the speed in words, with samples if the hyperparameters say how many a batch has.

    :param hparams: ``global_batch_size`` is the number of samples per batch over all ranks
    """
    size = hparams.get("global_batch_size")
    samples = ""
    # An integer of a configuration may be larger than any float.
    if isinstance(size, int | float) and not isinstance(size, bool) and 0 < size < 2**63:
        samples = f"{batches_per_s * size:.4g} samples/s, "
    return f"speed: {samples}{batches_per_s:.3g} batches/s over the last reports"


def _speed(series: Sequence[ReportedMetric]) -> float | None:
    """Return batches per second over the last reports of the metric that is reported most often."""
    longest = max(series, key=lambda one: len(one.at_s), default=None)
    if longest is None or min(len(longest.at_s), len(longest.batches)) < 2:
        return None
    at_s, batches = longest.at_s[-_RECENT:], longest.batches[-_RECENT:]
    passed_s = at_s[-1] - at_s[0]
    return (batches[-1] - batches[0]) / passed_s if passed_s > 0 and batches[-1] > batches[0] else None


def _devices(session: Session, trial_id: int) -> list[str]:
    """Return the use of the GPUs of each host in words, over the attempt."""
    by_host: dict[str, list[float]] = {}
    for one in ServerSource(session, keep=True).profile(trial_id, attempt=None).system:
        if one.metric == "gpu_util":
            by_host.setdefault(one.host, []).append(one.mean)
    return [f"{host}: GPUs {', '.join(f'{mean:.0f} %' for mean in means)}" for host, means in sorted(by_host.items())]


def watch_experiment(args: Namespace) -> None:
    """Follow an experiment and its trials, with rungs, until it ends."""
    session = session_of(args)
    patience = Patience(session, note)
    watch(lambda width: patience.of(lambda: _experiment(session, args.experiment_id, width)))


def _experiment(session: Session, experiment_id: int, width: int | None) -> View:
    source = ServerSource(session, keep=True)
    found = source.experiment(experiment_id)
    trials = source.trials(experiment=experiment_id, state=None, tags=(), limit=_TRIALS_MOST)
    head = f"Experiment {found.experiment_id} '{found.display_name or found.name}' is {state_text(found)}"
    if (progress := progress_text(found)) is not None:
        head += f", {progress}"
    if found.best is not None:
        head += f", best {found.metric} {cell(found.best)} (trial {found.best_trial})"
    lines = experiment_lines(head, trials, [_row(one) for one in reversed(trials)], width)
    return View(lines=lines, is_last=found.state in TRIAL_ENDED)


def _row(trial: TrialSummary) -> dict[str, object]:
    return {
        "trial": trial.trial_id,
        "hyperparameters": hparams_text(trial),
        "state": trial.state_text,
        "rung": trial.rung,
        "metric": trial.best_metric,
        "reason": summary_of(trial),
    }
