"""State of an experiment or a trial, as a task sees it that did not start it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TRIAL_SUCCEEDED, ExperimentState, TrialState
from airflow_provider_dtrain.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.searches import ExperimentView
    from airflow_provider_dtrain.store.store import Store

Verdict = Literal["waiting", "reached", "failed"]

#: States of each kind. DAG files check theirs against it without importing the store.
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "experiment": tuple(state.value for state in ExperimentState),
    "trial": tuple(state.value for state in TrialState),
}
ENDED: Final = frozenset(TRIAL_ENDED)
SUCCEEDED: Final = frozenset(TRIAL_SUCCEEDED)


@dataclass(frozen=True, kw_only=True)
class Target:
    """An experiment or a trial, and the states that a task waits for."""

    #: Id or name; None: a trial is the target.
    experiment: str | None = None
    trial_id: str | None = None
    #: DAG and DAG run that a named experiment belongs to; None: any.
    dag_id: str | None = None
    run_id: str | None = None
    target_states: tuple[str, ...]
    failed_states: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Target:
        """Return the target from the result of :meth:`to_dict`."""
        states = {name: tuple(value[name]) for name in ("target_states", "failed_states")}
        return cls(**{**value, **states})


@dataclass(frozen=True, kw_only=True)
class Observation:
    """State of a target at one time, and the verdict on it."""

    verdict: Verdict
    #: The state in words, with the cause of a failure.
    message: str
    #: XCom of a target that has reached its state.
    result: dict[str, Any]


def states_of(kind: str, given: str | Collection[str] | None, name: str, default: Collection[str]) -> tuple[str, ...]:
    """Return the states that a user has given, in the order of :data:`STATES`.

    :param given: one state, or several; None: ``default``
    :param kind: ``experiment`` or ``trial``
    :param name: name of the argument
    :raises ValueError: there is no such state
    """
    wanted = default if given is None else {given} if isinstance(given, str) else set(given)
    known = STATES[kind]
    if unknown := sorted(state for state in wanted if given is not None and state not in known):
        raise ValueError(f"{name} must be states of {kind}s ({', '.join(known)}), got {', '.join(map(repr, unknown))}.")
    return tuple(state for state in known if state in wanted)


def observe(store: Store, target: Target) -> Observation:
    """Return the state of a target. Blocks.

    :raises NotFoundError: there is no such experiment or trial
    :raises UserError: ``trial_id`` is not a whole number
    """
    return _of_trial(store, target) if target.trial_id is not None else _of_experiment(store, target)


def _of_trial(store: Store, target: Target) -> Observation:
    text = str(target.trial_id).strip()
    if not text.isdecimal():
        raise UserError(f"trial_id must be the id of a trial, a whole number, got {target.trial_id!r}.")
    view = store.trials.get(int(text))
    label = f"Trial {view.trial_id} of experiment '{view.experiment}'"
    result = {"experiment_id": view.experiment_id, "trial_id": view.trial_id, "result": view.result}
    return _judged(target, label, view.state, result, cause=(view.failure or {}).get("message"))


def _of_experiment(store: Store, target: Target) -> Observation:
    view = _find(store, target)
    result = {
        "experiment_id": view.experiment_id,
        "best": view.best,
        "best_trial": view.best_trial,
        "trials": dict(view.trials),
    }
    return _judged(target, f"Experiment {view.experiment_id} ('{view.name}')", view.state, result)


def _find(store: Store, target: Target) -> ExperimentView:
    """Return the experiment with the given id, or the newest one with the given name."""
    text = str(target.experiment).strip()
    if text.isdecimal():
        return store.experiments.get(int(text))
    found = store.experiments.list(limit=1, name=text, dag_id=target.dag_id, run_id=target.run_id)
    if not found:
        within = [f"DAG {target.dag_id!r}"] if target.dag_id else []
        within += [f"DAG run {target.run_id!r}"] if target.run_id else []
        of = f" of {', '.join(within)}" if within else ""
        raise NotFoundError(f"There is no experiment named {text!r}{of}. See: airflow dtrain experiments list")
    return found[0]


def _judged(target: Target, label: str, state: str, result: dict[str, Any], *, cause: str | None = None) -> Observation:
    if state in target.target_states:
        return Observation(verdict="reached", message=f"{label} is {state}.", result={**result, "state": state})
    expected = " or ".join(target.target_states)
    if state not in target.failed_states:
        return Observation(verdict="waiting", message=f"{label} is {state}, expected {expected}.", result={})
    why = f": {cause}" if cause else "."
    return Observation(verdict="failed", message=f"{label} is {state}, expected {expected}{why}", result={})
