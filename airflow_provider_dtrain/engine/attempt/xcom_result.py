"""Result of a trial as plain JSON, which the operator stores in XCom."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypedDict, cast

from airflow_provider_dtrain.core.checkpoint_policy import best_checkpoint
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.current_branch import current_branch
from airflow_provider_dtrain.engine.copies.checkpoints import is_in_run_folder
from airflow_provider_dtrain.engine.copies.first_attempt import first_attempt

if TYPE_CHECKING:
    from airflow_provider_dtrain.resources.metrics import MetricReport
    from airflow_provider_dtrain.store.records.trials import AttemptView, CheckpointView
    from airflow_provider_dtrain.store.store import Store


class RankEnd(TypedDict):
    """A rank of an ended trial."""

    rank: int
    slot: int
    exit_code: int | None


class HostRanks(TypedDict):
    """The ranks of an ended trial on one host."""

    host: str
    ranks: list[RankEnd]


class ManifestResult(TypedDict, total=False):
    """Part of the XCom that only a batch inference has."""

    #: None: it published no results.
    manifest: JsonObject | None


class TrialResult(ManifestResult):
    """XCom of an ended trial."""

    experiment_id: int
    trial_id: int
    state: str
    #: The searcher's metric of the best validation, and all metrics of that validation.
    metric: float | None
    metrics: JsonObject
    best_step: int | None
    steps: int
    rung: int | None
    #: Location of the best checkpoint.
    checkpoint: str | None
    hosts: list[HostRanks]


def trial_result(store: Store, view: AttemptView, state: str, *, without: Collection[int] = ()) -> TrialResult:
    """Return ids, state, the best validation, steps, checkpoint and where each rank ran. Blocks.

    :param state: how the trial ended
    :param without: ids of checkpoints that are about to be removed
    """
    searcher = store.configs.get(view.config_id).document.get("searcher") or {}
    metric = searcher.get("metric")
    smaller = searcher.get("smaller_is_better", True)
    # Ignore attempts whose hyperparameters were rejected.
    first = first_attempt(store, view)
    reports = [row for row in store.metrics.of_trial(view.trial_id) if row.attempt >= first]
    validations = current_branch([row for row in reports if row.group == "validation"])
    best = _best(validations, metric, smaller)
    checkpoints = [
        one
        for one in store.checkpoints.of_trial(view.trial_id)
        if one.attempt >= first and one.checkpoint_id not in without
    ]
    result: TrialResult = {
        "experiment_id": view.experiment_id,
        "trial_id": view.trial_id,
        "state": state,
        "metric": best.metrics.get(metric) if best and metric else None,
        "metrics": dict(best.metrics) if best else {},
        "best_step": best.step if best else None,
        "steps": max((row.step for row in reports), default=0),
        "rung": view.rung,
        "checkpoint": checkpoint_url(best_checkpoint(checkpoints, metric, smaller) if checkpoints else None),
        "hosts": _hosts(store, view),
        **_manifest(store, view),
    }
    return cast("TrialResult", plain(result))


def _manifest(store: Store, view: AttemptView) -> ManifestResult:
    """Return the manifest of a batch inference, and nothing for another trial."""
    section = store.configs.get(view.config_id).document.get("inference")
    if not section:
        return {}
    found = store.events.of_attempt(view.attempt_id, kinds=("manifest",))
    if not found:
        return {"manifest": None}
    body = found[-1].body
    # The location is that of the configuration, whatever a host reports.
    own = {name: body[name] for name in ("rows", "rows_bad", "shards", "bytes", "skipped", "sha256", "schema")}
    return {"manifest": {"location": section["outputs"]["path"], **own}}


def checkpoint_url(checkpoint: CheckpointView | None) -> str | None:
    """Return the location of a checkpoint: a path that both sides can read or a URL, else host, run and path."""
    if checkpoint is None:
        return None
    if checkpoint.copy_url is not None or not is_in_run_folder(checkpoint):
        return checkpoint.copy_url or checkpoint.path
    return f"{checkpoint.host}:{checkpoint.run}/{checkpoint.path}"


def _best(rows: list[MetricReport], metric: str | None, smaller_is_better: bool) -> MetricReport | None:
    """Return the validation with the best metric, or the last one when none has the metric.

    Of equal validations, the latest one is the best.
    """
    ranked = [
        (value, row)
        for row in rows
        if metric and isinstance(value := row.metrics.get(metric), int | float) and value == value
    ]
    if not ranked:
        return rows[-1] if rows else None
    sign = 1 if smaller_is_better else -1
    return min(ranked, key=lambda pair: (sign * pair[0], -pair[1].step))[1]


def _hosts(store: Store, view: AttemptView) -> list[HostRanks]:
    hosts: dict[str, list[RankEnd]] = {}
    for rank in store.events.ranks(view.attempt_id):
        hosts.setdefault(rank.host, []).append({"rank": rank.rank, "slot": rank.slot, "exit_code": rank.exit_code})
    return [{"host": host, "ranks": ranks} for host, ranks in hosts.items()]


def plain(value: Any) -> Any:
    """Return the value as JSON that XCom accepts: NaN and infinities become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
