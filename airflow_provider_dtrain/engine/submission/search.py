"""Plan of a search, and choice of its best trial."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from airflow_provider_dtrain.core.config.merge import origin_of
from airflow_provider_dtrain.core.documents import Hyperparameters, JsonObject
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_LIVE, TRIAL_SUCCEEDED
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT
from airflow_provider_dtrain.engine.attempt.xcom_result import ManifestResult, plain, trial_result
from airflow_provider_dtrain.engine.submission.submit import render
from airflow_provider_dtrain.errors import MetricMissingError, SearchFailedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.core.search.plan import TrialSpec
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.searches import SearchSubmission, SearchView
    from airflow_provider_dtrain.store.records.trials import Config, TrialKey, TrialView
    from airflow_provider_dtrain.store.store import Store

_SEED: Final = "reproducibility.experiment_seed"
#: Most characters of the name of an experiment.
_NAME_CHARS: Final = 250


class CodeOfTrial(TypedDict, total=False):
    """Part of a planned trial that is missing if each trial packs its own code."""

    #: Digest of code in the store.
    payload: str


class PlannedTrial(CodeOfTrial):
    """XCom of one planned trial."""

    number: int
    name: str
    #: None: sampled when the trial starts.
    hparams: Hyperparameters | None
    search_id: int
    bracket: int
    #: Units of training at each rung.
    rungs: list[int]


class PlannedTask(TypedDict):
    """XCom of a mapped task that runs several planned trials."""

    name: str
    search_id: int
    trials: list[PlannedTrial]


class BestTrial(ManifestResult):
    """XCom of the best trial of a search."""

    experiment_id: int
    search_id: int
    trial_id: int
    number: int
    metric: float | None
    metrics: JsonObject | None
    checkpoint: str | None
    hparams: Hyperparameters
    rung: int | None
    #: State -> trials in it.
    trials: dict[str, int]


def plan_search(
    hook: DtrainHook,
    key: TrialKey,
    config: str | Mapping[str, Any],
    template: str | Mapping[str, Any] | None,
    folder: Path,
    *,
    name: str | None = None,
    payload: str | None = None,
    max_map_length: int | None = None,
    needs_submission: bool = False,
    owner: str = "",
) -> list[PlannedTrial] | list[PlannedTask]:
    """Store a search, and return its trials as plain data. Repeatable by key. Blocks.

    With ``searcher.trials_per_task`` above 1, they are in groups of this size, one for each task.

    :param key: key of the planning task
    :param name: name of the experiment; None = the configuration's, else the DAG's
    :param payload: digest of code in the store that every trial runs; None = each trial packs its own
    :param max_map_length: most mapped tasks that Airflow creates from one list; None = no limit
    :param needs_submission: use connections, stored code and checkpoints only as a submission of the DAG run grants
        them
    :param owner: user to whom a new experiment belongs
    :raises ConfigError: the configuration is not valid, the search is incomplete or contradictory, or the code that
        each trial will pack lacks the script of the entrypoint
    :raises ConflictError: another task of this DAG run plans an experiment of this name
    """
    from airflow_provider_dtrain.core.search.names import trial_name
    from airflow_provider_dtrain.core.search.plan import outline, plan
    from airflow_provider_dtrain.engine.submission.entry import code_folder
    from airflow_provider_dtrain.engine.submission.granted import check_names, check_parameters

    granted = check_parameters(hook.store, key, config, template, payload) if needs_submission else None
    check = check_names if needs_submission and granted is None else None
    stored, wanted = _rendered(hook, key, config, template, folder, name, check)
    if granted is not None and granted.reproduces is not None and payload is not None:
        return [_again(hook.store, key, stored, wanted, hook.store.trials.get(granted.reproduces), payload, owner)]
    plan(wanted, _seed(wanted), max_map_length=max_map_length)
    if payload is None:
        code_folder(wanted, folder)
    search = hook.store.searches.create(_submission(key, stored, wanted, name or wanted.name or key.dag_id, owner))
    # An earlier try of this task may have stored another configuration.
    wanted = _checked(hook.store.configs.get(search.config_id))
    space = wanted.hyperparameters
    code: CodeOfTrial = {} if payload is None else {"payload": payload}
    trials = [
        _planned(spec, search, code, trial_name(spec["number"], spec["hyperparameters"], space))
        for spec in plan(wanted, search.seed, max_map_length=max_map_length)
    ]
    per_task = outline(wanted).trials_per_task
    return (
        trials
        if per_task == 1
        else [_task(search, trials[at : at + per_task]) for at in range(0, len(trials), per_task)]
    )


def _again(
    store: Store,
    key: TrialKey,
    stored: Config,
    config: ExperimentConfig,
    original: TrialView,
    payload: str,
    owner: str,
) -> PlannedTrial:
    """Store a search of one trial that runs another one again, and return this trial.

    It has the number and the seed of the search of the original trial, from which its own seed follows. If the
    searcher stopped the original, its last rung is the last one here.
    """
    from airflow_provider_dtrain.core.search.names import trial_name

    before = store.searches.of_trial(original.trial_id)
    rungs = before.rungs.get(original.bracket, ()) if before is not None else ()
    if decided := store.searches.decisions(original.trial_id):
        rungs = rungs[: decided[-1].rung + 1]
    search = store.searches.create(
        dataclasses.replace(
            _submission(
                key, stored, config, f"trial {original.trial_id} of {original.experiment}, again"[:_NAME_CHARS], owner
            ),
            seed=_seed(config) if before is None else before.seed,
            is_seed_given=True,
            rungs={original.bracket: tuple(rungs)} if rungs else {},
            max_trials=1,
            max_concurrent_trials=0,
        )
    )
    return {
        "payload": payload,
        "name": trial_name(original.number, original.hparams, config.hyperparameters),
        "number": original.number,
        "hparams": dict(original.hparams),
        "search_id": search.search_id,
        "bracket": original.bracket,
        "rungs": list(rungs),
    }


def _rendered(
    hook: DtrainHook,
    key: TrialKey,
    config: str | Mapping[str, Any],
    template: str | Mapping[str, Any] | None,
    folder: Path,
    name: str | None,
    check: Callable[[ExperimentConfig], object] | None,
) -> tuple[Config, ExperimentConfig]:
    """Return the stored configuration, with the first generation's seed unless the user gave one."""
    from airflow_provider_dtrain.engine.attempt.job import source_of
    from airflow_provider_dtrain.engine.attempt.sampling import check_installed

    stored = render(hook, config, template, folder, check=check)
    checked = _checked(stored)
    source_of(hook.store, checked, stored.secrets)
    check_installed(checked.searcher)
    seed = None if _gives_seed(stored) else _first_seed(hook.store, key, name or checked.name or key.dag_id)
    if seed is None or seed == _seed(checked):
        return stored, checked
    document = dict(stored.document)
    document["reproducibility"] = {**document["reproducibility"], "experiment_seed": seed}
    again = hook.store.configs.put(
        document,
        origins=stored.origins,
        template=stored.template,
        template_version=stored.template_version,
        secrets=stored.secrets,
    )
    return again, _checked(again)


def _checked(stored: Config) -> ExperimentConfig:
    from airflow_provider_dtrain.core.config import refuse_unsupported
    from airflow_provider_dtrain.store.configs import model_of

    config = model_of(stored)
    refuse_unsupported(config, stored.origins)
    return config


def _gives_seed(stored: Config) -> bool:
    return origin_of(_SEED, stored.origins) != "default"


def _seed(config: ExperimentConfig) -> int:
    return config.reproducibility.experiment_seed or 0


def _first_seed(store: Store, key: TrialKey, name: str) -> int | None:
    """Return the seed of the generation that this task planned before it was cleared, or None."""
    for one in store.experiments.list(dag_id=key.dag_id, run_id=key.run_id, name=name):
        if one.search_id is not None:
            return store.searches.get(one.search_id).seed
    return None


def _submission(key: TrialKey, stored: Config, config: ExperimentConfig, name: str, owner: str) -> SearchSubmission:
    from airflow_provider_dtrain.core.search.plan import outline
    from airflow_provider_dtrain.store.records.searches import SearchSubmission

    searcher = config.searcher
    shape = outline(config)
    divisor = {} if shape.divisor is None else {"divisor": shape.divisor}
    return SearchSubmission(
        key=key,
        experiment_name=name,
        config_id=stored.config_id,
        method=searcher.name,
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        seed=_seed(config),
        is_seed_given=_gives_seed(stored),
        rungs={index: rungs for index, (rungs, _) in enumerate(shape.brackets) if rungs},
        max_trials=shape.trials,
        max_concurrent_trials=shape.max_concurrent or 0,
        weight=config.resources.weight,
        max_slots=config.resources.max_slots,
        owner=owner,
        project=config.project or DEFAULT_PROJECT,
        **divisor,
    )


def _planned(spec: TrialSpec, search: SearchView, code: CodeOfTrial, name: str) -> PlannedTrial:
    return {
        **code,
        "name": name,
        "number": spec["number"],
        "hparams": spec["hyperparameters"],
        "search_id": search.search_id,
        "bracket": spec["bracket"],
        "rungs": spec["rungs"],
    }


def _task(search: SearchView, trials: list[PlannedTrial]) -> PlannedTask:
    first, last = trials[0]["number"], trials[-1]["number"]
    name = f"trial {first}" if first == last else f"trials {first} to {last}"
    return {"name": name, "search_id": search.search_id, "trials": trials}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The best trial of a search."""

    experiment: str
    #: The operator's XCom.
    result: BestTrial
    #: True when it beats the best of every earlier run of the experiment and the value that this run has announced.
    is_new_best: bool
    #: Best metric of earlier runs; None without one.
    before: float | None
    #: Metric that this run has announced before, if that is as good.
    announced: float | None = None


def select_best(store: Store, search_id: int, key: TrialKey) -> Selection:
    """End a search and return its best trial. Blocks.

    :param key: key of the calling task, which announces a new best
    :raises SearchFailedError: no trial completed or was stopped, or a user killed the experiment; names the cause
    :raises MetricMissingError: no trial reported a finite value of the searcher's metric
    """
    search = store.searches.get(search_id)
    states = Counter(str(row.state) for row in store.searches.history(search_id))
    missing = search.max_trials - states.total()
    counts = dict(states)
    if missing > 0:
        counts["not started"] = missing
    end = store.searches.end(search_id)
    if end.state == "killed" or not any(states[state] for state in TRIAL_SUCCEEDED):
        raise SearchFailedError(_why(search, counts, end.failure, end.failed_trial_id))
    best = _best(store, search)
    before = store.searches.best_metric_of(search.experiment, search.smaller_is_better, before_search_id=search_id)
    result = _result(store, search, best, counts)
    metric = result["metric"]
    announced = None
    # A batch inference has no model.
    is_new_best = not result.get("manifest") and _beats(metric, before, search.smaller_is_better)
    if is_new_best and metric is not None:
        announced = store.searches.announce_best(search_id, key, metric)
    return Selection(
        experiment=search.experiment,
        result=result,
        is_new_best=is_new_best and announced is None,
        before=before,
        announced=announced,
    )


def _beats(metric: float | None, before: float | None, smaller_is_better: bool) -> bool:
    if metric is None or before is None:
        return metric is not None
    return metric < before if smaller_is_better else metric > before


def _why(search: SearchView, counts: Mapping[str, int], failure: Mapping[str, Any] | None, failed: int | None) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    if failure is not None and failed is None and any(counts.get(state) for state in TRIAL_SUCCEEDED):
        return (
            f"{failure.get('message')} Trials of '{search.experiment}': {states}. Clear its killed trials to continue, "
            f"or show its results: airflow dtrain experiments describe {search.experiment_id}"
        )
    message = f"No trial of experiment '{search.experiment}' completed ({states} of {search.max_trials})."
    if failure is not None and failed is not None:
        return f"{message} The first trial that failed is {failed}: {failure.get('message')}"
    if any(counts.get(state) for state in TRIAL_LIVE):
        return f"{message} This task must run after the trials: trials >> best."
    return f"{message} See the logs of the trial tasks."


def _best(store: Store, search: SearchView) -> TrialView:
    """Return the trial with the best metric, or the only trial of a search without a metric."""
    if (best := store.searches.best_trial(search.search_id)) is not None:
        return best
    rows = [row for row in store.searches.history(search.search_id) if row.state in TRIAL_SUCCEEDED]
    if search.metric is None:
        return store.trials.get(rows[0].trial_id)
    reported = {
        name: value
        for row in rows
        for entry in store.metrics.of_trial(row.trial_id, "validation")
        for name, value in entry.metrics.items()
    }
    if search.metric in reported:
        raise MetricMissingError(
            f"Every validation of experiment '{search.experiment}' reported NaN or an infinite value of "
            f"'{search.metric}', so it has no best trial. Show the losses: airflow dtrain trials metrics "
            f"{rows[0].trial_id}"
        )
    names = ", ".join(sorted(reported)) or "nothing"
    raise MetricMissingError(
        f"No trial of experiment '{search.experiment}' reported '{search.metric}' in a validation; they reported: "
        f"{names}. Set searcher.metric to one of these, or report it: ctx.report_validation(step, {{...}})."
    )


def _result(store: Store, search: SearchView, best: TrialView, counts: Mapping[str, int]) -> BestTrial:
    known = best.result or trial_result(store, store.attempts.get(best.attempt_id), best.state)
    manifest: ManifestResult = {"manifest": known["manifest"]} if known.get("manifest") else {}
    result: BestTrial = {
        "experiment_id": search.experiment_id,
        "search_id": search.search_id,
        "trial_id": best.trial_id,
        "number": best.number,
        "metric": known.get("metric"),
        "metrics": known.get("metrics"),
        "checkpoint": known.get("checkpoint"),
        "hparams": dict(best.hparams),
        "rung": best.rung,
        "trials": dict(counts),
        **manifest,
    }
    return cast("BestTrial", plain(result))
