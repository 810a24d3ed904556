"""Words about the end of a trial, for the name of its task instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.core.search.late_draws import draws_at_start
from airflow_provider_dtrain.core.search.names import metric_text, reached_text, trial_name
from airflow_provider_dtrain.engine.attempt.outcome import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.store.records.trials import TrialView
    from airflow_provider_dtrain.store.store import Store


class ShownFacts(TypedDict, total=False):
    """Facts about a trial that its task instance shows. All but the id are missing if the store does not answer."""

    trial_id: int
    #: Of a trial that sampled its hyperparameters after it was planned; None: the name of the plan is right.
    name: str | None
    ending: str


def shown_of(store: Store, trial_id: int) -> ShownFacts:
    """Return the facts about a trial that its task instance shows. Blocks."""
    return ShownFacts(trial_id=trial_id, name=drawn_name(store, trial_id), ending=ending_text(store, trial_id))


def drawn_name(store: Store, trial_id: int) -> str | None:
    """Return the name of a trial that sampled its hyperparameters after it was planned, or None. Blocks."""
    trial = store.trials.get(trial_id)
    document = store.configs.get(trial.config_id).document
    searcher = document.get("searcher") or {}
    if not trial.is_drawn or not (trial.draw or draws_at_start(searcher.get("name"), searcher.get("sampler"))):
        return None
    return trial_name(trial.number, trial.hparams, document.get("hyperparameters") or {})


def ending_text(store: Store, trial_id: int) -> str:
    """Return the result of an ended trial in a few words, or an empty string while it has not ended. Blocks.

    For example ``accuracy 0.914``, ``stopped at epoch 2, accuracy 0.71`` or ``failed: ValueError: ...``. Nothing about
    other trials is among them: no process can change this name once another trial is better.
    """
    trial = store.trials.get(trial_id)
    searcher = store.configs.get(trial.config_id).document.get("searcher") or {}
    match trial.state:
        case TrialState.COMPLETED:
            return _metric(trial, searcher) or "completed"
        case TrialState.STOPPED:
            return ", ".join(filter(None, [_stopped(store, trial, searcher), _metric(trial, searcher)]))
        case TrialState.ERRORED:
            return f"failed: {Failure(**trial.failure).cause}" if trial.failure else "failed"
        case TrialState.KILLED:
            return f"killed by {trial.kill_requested_by}" if trial.kill_requested_by else "killed"
    return ""


def _metric(trial: TrialView, searcher: Mapping[str, Any]) -> str:
    name = searcher.get("metric")
    if not name:
        return ""
    value = trial.best_metric if trial.best_metric is not None else (trial.result or {}).get("metric")
    has_validation = value is not None or name in ((trial.result or {}).get("metrics") or {})
    return metric_text(str(name), value) if has_validation else ""


def _stopped(store: Store, trial: TrialView, searcher: Mapping[str, Any]) -> str:
    if trial.stop_requested_by:
        return f"stopped by {trial.stop_requested_by}"
    decisions = store.searches.decisions(trial.trial_id)
    return f"stopped at {reached_text(decisions[-1].units, searcher)}" if decisions else "stopped"
