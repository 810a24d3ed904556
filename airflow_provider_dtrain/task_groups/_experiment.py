"""Task group of a whole experiment: plan, trials, best trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup, XComArg

from airflow_provider_dtrain.notifications.events import Given
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

PLAN, TRIAL, BEST = "plan", "trial", "best"


class ExperimentGroup(TaskGroup):
    """The tasks of one experiment: ``plan``, one mapped ``trial`` for each trial, ``best``."""

    @property
    def best(self) -> BaseOperator:
        """The task that returns the best trial."""
        found = self.children[self.child_id(BEST)]  # type: ignore[no-untyped-call]
        assert isinstance(found, BaseOperator)
        return found

    @property
    def output(self) -> XComArg:
        """The best trial, see :class:`SelectBestTrialOperator`."""
        return XComArg(self.best)


def experiment(
    config: str | Mapping[str, Any],
    template: str | Mapping[str, Any] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    name: str | None = None,
    group_id: str = "experiment",
    payload: str | None = None,
    needs_submission: bool = False,
    notify: Mapping[str, Given] | None = None,
    **options: Any,
) -> ExperimentGroup:
    """Return a task group that renders a configuration, runs its trials and returns the best one.

    ::

        tuned = experiment("search.yaml", deferrable=True)
        deploy(tuned.output)

    :param config: experiment configuration: a path (relative to the DAG file), YAML text, or a dict (templated)
    :param template: name of a stored template, a path, or a dict (templated)
    :param overrides: dotted path, e.g. ``resources.slots_per_trial`` -> value that replaces the one in the
        configuration (templated)
    :param name: name of the experiment; overrides the configuration's. Two experiments of one DAG need two names
    :param group_id: ID of the group; the tasks are ``<group_id>.plan``, ``.trial`` and ``.best``
    :param payload: digest of code that was stored before; None = each trial packs ``model_dir`` when it starts
        (templated)
    :param needs_submission: True for a DAG whose configuration comes from its parameters: see
        :class:`PlanTrialsOperator`
    :param notify: event -> one of Airflow's notifiers, or several: ``finished`` and ``failed`` of the experiment,
        ``trial_failed``, ``waited`` and ``best`` of its trials
    :param options: options of the trials: ``deferrable``, ``retries``, ``execution_timeout`` and all other arguments
        of a :class:`TrialOperator`
    """
    group = ExperimentGroup(group_id=group_id)
    with group:
        plan = PlanTrialsOperator(
            task_id=PLAN,
            config=config,
            template=template,
            overrides=overrides,
            name=name,
            payload=payload,
            needs_submission=needs_submission,
        )
        extra: dict[str, Any] = {} if notify is None else {"notify": notify}
        options = {"needs_submission": needs_submission, **extra, **options}
        trials = TrialOperator.partial(task_id=TRIAL, **options).expand(trial=plan.output)
        best = SelectBestTrialOperator(
            task_id=BEST, plan=plan.output, name=_known_name(config, name), needs_submission=needs_submission, **extra
        )
        trials >> best
    return group


def _known_name(config: str | Mapping[str, Any], name: str | None) -> str | None:
    """Return the experiment's name if the DAG file contains it, or None if only the plan does."""
    if name is None and isinstance(config, Mapping):
        name = config.get("name")
    return name if isinstance(name, str) and "{" not in name else None
