"""The answers as the store of the seeded site has them, and its trials for other programs."""

from __future__ import annotations

import base64
import math
import statistics
from collections import defaultdict
from typing import Any

from airflow_provider_dtrain.resources.usage import UsageBy
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.usage import usage_of
from airflow_provider_dtrain.store.records.trials import TrialView
from airflow_provider_dtrain.store.store import Store
from testbed.seed.experiments import CODE, COMMIT, OTHER_CODE
from testbed.seed.media import media_of
from testbed.seed.run import PACKAGES

ASHA, GRID, LANGUAGE, BROKEN = "cifar10-asha", "mnist-grid", "gpt2-finetune", "imagenet-resnet50"
#: Points of a series of a GPU, and chunks of a log, that other programs get.
POINTS, CHUNKS = 200, 10_000


class Truth:
    """The answers to the questions."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.trials: dict[str, list[TrialView]] = defaultdict(list)
        for trial in store.trials.list(limit=None):
            self.trials[trial.experiment].append(trial)
        self.failed = [one for rows in self.trials.values() for one in rows if one.state == "errored"]
        self.best, *_ = self.ranked = sorted(self._values(ASHA).items(), key=lambda one: -one[1])

    def _values(self, experiment: str) -> dict[int, float]:
        """Return trial id -> best accuracy of an experiment."""
        found = {}
        for trial in self.trials[experiment]:
            reports = self.store.metrics.of_trial(trial.trial_id)
            known = [
                one.metrics["accuracy"] for one in reports if one.group == "validation" and "accuracy" in one.metrics
            ]
            if known:
                found[trial.trial_id] = max(known)
        return found

    def trial(self, trial_id: int) -> TrialView:
        return next(one for rows in self.trials.values() for one in rows if one.trial_id == trial_id)

    def only(self, experiment: str) -> TrialView:
        """Return the trial of an experiment that has one."""
        (trial,) = self.trials[experiment]
        return trial

    def failed_of_search(self) -> list[TrialView]:
        return [one for one in self.trials[ASHA] if one.state == "errored"]

    def good_before(self, failed_id: int) -> int:
        """Return the latest trial of the search before a failed one that did not fail."""
        return max(one.trial_id for one in self.trials[ASHA] if one.trial_id < failed_id and one.state != "errored")

    def dropouts(self, *trial_ids: int) -> list[str]:
        """Return the dropout of trials, which differs in each of them, with six digits."""
        return [f"{math.floor(self.trial(one).hparams['dropout'] * 1e6) / 1e6:.6g}" for one in trial_ids]

    def filtered(self) -> list[int]:
        """Return the trials of the question with a filter."""
        values = self._values(ASHA)
        return sorted(one for one, value in values.items() if value > 0.85 and self.trial(one).hparams["lr"] < 0.01)

    def seed_means(self) -> list[tuple[float, float]]:
        """Return learning rate and mean accuracy over the seeds, the best first."""
        groups = defaultdict(list)
        for trial_id, value in self._values(GRID).items():
            groups[float(self.trial(trial_id).hparams["lr"])].append(value)
        return sorted(((lr, statistics.mean(values)) for lr, values in groups.items()), key=lambda one: -one[1])

    def log(self, trial: TrialView, rank: int) -> bytes:
        """Return the log of a rank in the latest attempt, as far as it was copied, else its end."""
        attempt_id = trial.attempt_id or 0
        chunks = self.store.log_copies.chunks(attempt_id, rank, line=0, most=CHUNKS)
        tails = {one.rank: one.log_tail for one in self.store.events.ranks(attempt_id)}
        return b"".join(one.content for one in chunks) or (tails.get(rank) or "").encode()

    def upload_line(self) -> str:
        """Return the first line of a log that a failed upload wrote."""
        lines = self.log(self.only(LANGUAGE), 0).decode().splitlines()
        return next(line for line in lines if "the upload of" in line)

    def busiest_user(self) -> str:
        """Return the user of most slot hours in a week, as the page does without other choices."""
        return str(usage_of(self.store, AllRights(), by=UsageBy.USER, days=7).rows[0].name)


# -- for other programs -----------------------------------------------------------------------------
def exported(truth: Truth) -> list[dict[str, Any]]:
    """Return all trials with what other programs keep of a run, as JSON."""
    store = truth.store
    tags = {
        one.experiment_id: store.labels.get("experiment", one.experiment_id).tags
        for one in store.experiments.list(limit=None)
    }
    rows = [
        _exported(truth, trial, list(tags[trial.experiment_id])) for trials in truth.trials.values() for trial in trials
    ]
    return sorted(rows, key=lambda one: int(one["trial_id"]))


def _exported(truth: Truth, trial: TrialView, tags: list[str]) -> dict[str, Any]:
    store = truth.store
    failure = trial.failure or {}
    goal = "loss" if trial.experiment == LANGUAGE else "accuracy"
    files = _files(truth, trial)
    return {
        "experiment": trial.experiment,
        "trial_id": trial.trial_id,
        "state": trial.state,
        "owner": trial.owner,
        "is_minimized": goal == "loss",
        "hparams": dict(trial.hparams),
        "tags": tags,
        "commit": COMMIT,
        "torch": PACKAGES["torch"],
        "created_at": trial.created_at.isoformat(),
        "ended_at": trial.ended_at.isoformat() if trial.ended_at else None,
        "error": f"{failure.get('message', '')}\n\n{failure.get('traceback') or ''}".strip(),
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        "metrics": [
            {
                "name": f"{one.group}/{name}",
                "value": value,
                "step": one.step,
                "at": one.at.isoformat(),
                "is_goal": one.group == "validation" and name == goal,
            }
            for one in store.metrics.of_trial(trial.trial_id)
            for name, value in one.metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        ],
        "gpus": _gpus(store, trial),
    }


def _files(truth: Truth, trial: TrialView) -> dict[str, bytes]:
    """Return logs, images, code and packages of a trial: path -> content."""
    ranks = truth.store.events.ranks(trial.attempt_id) if trial.attempt_id else []
    logs = {f"logs/rank{one.rank}.log": truth.log(trial, one.rank) for one in ranks}
    files = {name: log for name, log in logs.items() if log}
    if trial.experiment == GRID:
        files |= {path: data for path, data in media_of(trial.trial_id).items() if path.endswith("image.png")}
    files["requirements.txt"] = "\n".join(f"{name}=={version}" for name, version in PACKAGES.items()).encode()
    code = OTHER_CODE.get(trial.experiment, CODE)
    return files | {f"code/{path.name}": path.read_bytes() for path in code.glob("*.py")}


def _gpus(store: Store, trial: TrialView) -> list[dict[str, Any]]:
    """Return the utilization of the GPUs of a long training: host, device and points [Unix seconds, percent]."""
    if trial.experiment != LANGUAGE:
        return []
    series = store.telemetry.series(trial.trial_id, metrics=["gpu_util"], max_points=POINTS)
    latest = max((one.attempt for one in series), default=0)
    return [
        {
            "host": one.host,
            "device": one.device,
            "points": [[at, value] for at, value in zip(one.at_s, one.mean, strict=True) if value is not None],
        }
        for one in series
        if one.attempt == latest
    ]
