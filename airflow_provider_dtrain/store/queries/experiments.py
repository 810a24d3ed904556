"""Experiments: lists, and one with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE
from airflow_provider_dtrain.core.lifecycle.trial_text import units_of
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.core.search.dimensions import dimensions
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.experiments import (
    ExperimentDetail,
    ExperimentPage,
    ExperimentSummary,
    Hyperparameter,
    Search,
)
from airflow_provider_dtrain.store.queries.checkpoints import best_of
from airflow_provider_dtrain.store.queries.metric_names import shown_names
from airflow_provider_dtrain.store.queries.rights import readable_experiment

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.pages import ExperimentEntry, ExperimentPlan, ExperimentQuery
    from airflow_provider_dtrain.store.records.searches import ExperimentView
    from airflow_provider_dtrain.store.records.trials import Config
    from airflow_provider_dtrain.store.store import Store

#: Trials from which the names of an experiment's metrics come.
NAMES_FROM: Final = 5


def experiment_page(store: Store, rights: Rights, query: ExperimentQuery) -> ExperimentPage:
    """Return one page of the experiments that the user may read."""
    dags = rights.readable(store)
    entries, total = store.experiment_table.page(replace(query, dags=dags))
    owners, projects = store.places.in_use(dags)
    return ExperimentPage(
        rows=_summaries(rights, entries),
        total=total,
        tags=store.labels.tags_in_use(dags),
        owners=owners,
        projects=projects,
    )


def experiment_summary(store: Store, rights: Rights, experiment_id: int) -> ExperimentSummary:
    """Return an experiment as a row of a list.

    :raises NotFoundError: there is no experiment with this id that the user may read
    """
    (found,) = _summaries(rights, [readable_experiment(store, rights, experiment_id)])
    return found


def experiment_detail(store: Store, rights: Rights, experiment_id: int) -> ExperimentDetail:
    """Return an experiment with its plan.

    :raises NotFoundError: there is no experiment with this id that the user may read
    """
    entry = readable_experiment(store, rights, experiment_id)
    view = entry.view
    config = config_of(store, experiment_id)
    document = {} if config is None else config.document
    chosen, _ = store.trial_table.chosen(experiment_id, "latest", NAMES_FROM)
    shown = chosen if view.best_trial is None else [view.best_trial, *chosen]
    (summary,) = _summaries(rights, [entry])
    best, checkpoint = None, None
    if view.best_trial is not None:
        best = plain_data(store.trials.get(view.best_trial).hparams)
        checkpoint = best_of(store, view.best_trial, view.metric, smaller_is_better=view.smaller_is_better)
    return ExperimentDetail(
        **vars(summary),
        config_id=None if config is None else config.config_id,
        search=_search(store, view, config),
        best_checkpoint=checkpoint,
        best_hparams=best,
        without_checkpoint=store.checkpoints.missing(experiment_id) if view.state in EXPERIMENT_LIVE else [],
        weight=view.weight,
        max_slots=view.max_slots,
        requested_by=view.requested_by,
        metrics=shown_names(store.curves.names(shown)),
        has_epochs=store.curves.have_epochs(shown),
        config_description=str(document.get("description") or ""),
        config_labels=[str(label) for label in document.get("labels") or ()],
        hyperparameters=_hyperparameters(config),
        is_inference=bool(document.get("inference")),
    )


def trial_of_experiment(store: Store, rights: Rights, experiment_id: int) -> int:
    """Return the trial that stands for an experiment where code and packages are shown: the best, else the latest one.

    :raises NotFoundError: there is no experiment with this id that the user may read, or it has no trial
    """
    view = readable_experiment(store, rights, experiment_id).view
    if view.best_trial is not None:
        return view.best_trial
    latest = store.trials.list(experiment_id=experiment_id, limit=1)
    if not latest:
        raise NotFoundError(f"Experiment {experiment_id} has no trial yet, so it has no code and no packages.")
    return latest[0].trial_id


def config_of(store: Store, experiment_id: int) -> Config | None:
    """Return the configuration of an experiment, None while it has neither plan nor trial."""
    config_id = store.experiment_table.config_id(experiment_id)
    return None if config_id is None else store.configs.get(config_id)


def plan_config(store: Store, plan: ExperimentPlan) -> Config | None:
    """Return the configuration of an experiment, None while it has neither plan nor trial."""
    return None if plan.config_id is None else store.configs.get(plan.config_id)


def units_in(config: Config | None) -> str:
    """Return the unit of the lengths of training in a configuration."""
    return units_of(None if config is None else config.document.get("searcher"))


def _summaries(rights: Rights, entries: Sequence[ExperimentEntry]) -> list[ExperimentSummary]:
    editable = rights.may_edit({one.view.dag_id for one in entries})
    return [_summary(one, may_edit=one.view.dag_id in editable) for one in entries]


def _summary(entry: ExperimentEntry, *, may_edit: bool) -> ExperimentSummary:
    view = entry.view
    return ExperimentSummary(
        experiment_id=view.experiment_id,
        name=view.name,
        display_name=entry.labels.display_name,
        dag_id=view.dag_id,
        run_id=view.run_id,
        state=view.state,
        never_fits=entry.cannot_run is not None,
        reason=entry.cannot_run,
        control_request=view.control_request,
        method=view.method,
        metric=view.metric,
        smaller_is_better=view.smaller_is_better,
        best=plain_data(view.best),
        best_trial=view.best_trial,
        trials=dict(sorted(view.trials.items())),
        max_trials=view.max_trials,
        progress=entry.progress,
        expected_end=entry.expected_end,
        created_at=view.created_at,
        ended_at=view.ended_at,
        description=entry.labels.description,
        tags=list(entry.labels.tags),
        owner=view.owner,
        project=view.project,
        archived=view.archived,
        is_deleting=view.delete_requested_at is not None,
        may_edit=may_edit,
    )


def _search(store: Store, view: ExperimentView, config: Config | None) -> Search | None:
    if view.search_id is None:
        return None
    found = store.searches.get(view.search_id)
    searcher = (config.document.get("searcher") if config is not None else None) or {}
    return Search(
        search_id=found.search_id,
        generation=found.generation,
        divisor=found.divisor,
        seed=found.seed,
        units=units_in(config),
        rungs={str(bracket): list(lengths) for bracket, lengths in found.rungs.items()},
        max_concurrent_trials=found.max_concurrent_trials,
        sampler=str(searcher.get("sampler") or found.method),
    )


def _hyperparameters(config: Config | None) -> list[Hyperparameter]:
    space = None if config is None else config.document.get("hyperparameters")
    return [
        Hyperparameter(
            name=one.name,
            kind=one.kind,
            log=one.is_log,
            minimum=one.minimum,
            maximum=one.maximum,
            values=None if one.values is None else list(one.values),
        )
        for one in dimensions(space)
    ]
