"""Submission of a trial: stores its configuration, payload, trial and gang request."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.config.forms import is_path_like, is_rendered
from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.seeds import SEED_LIMIT, trial_seed
from airflow_provider_dtrain.core.lifecycle.after_failure import restart_of
from airflow_provider_dtrain.core.lifecycle.states import AttemptState
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT
from airflow_provider_dtrain.core.regular_files import read_regular
from airflow_provider_dtrain.engine.submission.assembly import assembled, choose_pool
from airflow_provider_dtrain.errors import ConfigError, ConflictError, NotFoundError, Problem, StaleWatchError
from airflow_provider_dtrain.store.records.trials import HandOver

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.upkeep.held_gangs import HeldGang
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.provenance import DagBundle, GitState
    from airflow_provider_dtrain.store.records.trials import Config, Ticket, TrialKey, TrialSubmission
    from airflow_provider_dtrain.store.store import Store

_log = logging.getLogger(__name__)


def read_document(value: str | Mapping[str, Any], folder: Path, *, what: str) -> Mapping[str, Any]:
    """Return a document given as a path, as YAML text or as a dict.

    :param folder: where relative paths start: the folder of the DAG file
    :param what: ``configuration`` or ``template``, for messages
    :raises ConfigError: the text is not valid YAML, or the file cannot be read
    """
    from airflow_provider_dtrain.core.config.yaml_reader import MAX_BYTES, load_yaml

    if isinstance(value, Mapping):
        return value
    if not is_path_like(value):
        return load_yaml(value, source=what)
    path = folder / value
    try:
        text = read_regular(path, limit_bytes=MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot read {path}: {reason}. Relative paths start at the folder of the DAG file"
        raise ConfigError([Problem(path="", message=message)], source=what) from None
    return load_yaml(text, source=str(value))


def overridden(
    config: str | Mapping[str, Any], overrides: Mapping[str, Any] | None, folder: Path
) -> str | Mapping[str, Any]:
    """Return a configuration with an operator's ``overrides`` applied.

    Without overrides, it is the configuration itself.

    :param config: path, YAML text or dict
    :param folder: where relative paths start: the folder of the DAG file
    :raises ConfigError: the configuration cannot be read, was rendered before, or has no map where a path needs one
    """
    from airflow_provider_dtrain.core.config.overrides import with_overrides

    if not overrides:
        return config
    if is_rendered(config):
        message = "belong to the task that renders the configuration; this task gets a rendered one"
        raise ConfigError([Problem(path="overrides", message=message)])
    return with_overrides(read_document(config, folder, what="configuration"), overrides)


def render(
    hook: DtrainHook,
    config: str | Mapping[str, Any],
    template: str | Mapping[str, Any] | None,
    folder: Path,
    *,
    pool: str | None = None,
    check: Callable[[ExperimentConfig], object] | None = None,
    may_read: Callable[[str], bool] | None = None,
) -> Config:
    """Merge template and configuration, validate the result, and store it. Blocks.

    :param config: path, YAML text, dict, or the result of ``RenderConfigOperator``
    :param template: name of a stored template, path, or dict; None = the one that the configuration names
    :param pool: pool for a configuration that names none; None = see :func:`choose_pool`
    :param check: raises an error for a configuration that must not be stored
    :param may_read: returns whether experiments of a DAG may be named; None = of all DAGs
    :raises ConfigError: all problems at once
    """
    store = hook.store
    if isinstance(config, Mapping) and is_rendered(config):
        return store.configs.get(int(config["config_id"]))
    source = read_document(config, folder, what="configuration")
    named = template if template is not None else source.get("template")
    base, name, version = template_of(store, named, folder)
    hook.ensure_local()
    found = assembled(store, source, base, pool=pool)
    if found.no_pool is not None:
        raise NotFoundError(found.no_pool)
    effective = found.effective
    if check is not None:
        check(effective.config)
    for warning in effective.warnings:
        hook.log.warning("%s", warning)
    document = dict(effective.document)
    if document.get("reproducibility", {}).get("experiment_seed") is None:
        # A later run into the folder of a batch inference continues it, so both need one seed.
        seed = 0 if document.get("inference") else secrets.randbelow(SEED_LIMIT)
        document["reproducibility"] = {**document.get("reproducibility", {}), "experiment_seed": seed}
    from airflow_provider_dtrain.engine.attempt.source_checkpoint import pinned
    from airflow_provider_dtrain.hooks.secrets import seal

    masked, sealed = seal(pinned(store, document, may_read))
    return store.configs.put(masked, origins=effective.origins, template=name, template_version=version, secrets=sealed)


def config_of(
    hook: DtrainHook,
    config: str | Mapping[str, Any] | None,
    template: str | Mapping[str, Any] | None,
    folder: Path,
    *,
    trial: Mapping[str, Any] | None,
    pool: str | None = None,
) -> Config:
    """Return the configuration of a trial: its search's, else the rendered one. Blocks.

    :param trial: the planned trial; None = not planned
    :param pool: as for :func:`render`
    :raises ConfigError: all problems at once
    """
    if (search_id := (trial or {}).get("search_id")) is not None:
        return hook.store.configs.get(hook.store.searches.get(int(search_id)).config_id)
    if config is None:
        raise ConfigError([Problem(path="config", message="missing; only a trial of a PlanTrialsOperator needs none")])
    return render(hook, config, template, folder, pool=pool)


def template_of(store: Store, named: Any, folder: Path) -> tuple[Mapping[str, Any] | None, str | None, int | None]:
    """Return a template with its name and version, if it has these. Blocks.

    :param named: name of a stored template, path or document; None = no template
    """
    from airflow_provider_dtrain.core.config.yaml_reader import load_yaml

    if named is None:
        return None, None, None
    if isinstance(named, Mapping) or (isinstance(named, str) and is_path_like(named)):
        return read_document(named, folder, what="template"), named if isinstance(named, str) else "template", None
    stored = store.templates.get(str(named))
    return load_yaml(stored.text, source=f"template '{stored.name}'"), stored.name, stored.version


def submit(
    hook: DtrainHook,
    stored: Config,
    *,
    key: TrialKey,
    folder: Path,
    trial: Mapping[str, Any] | None = None,
    gang: HeldGang | None = None,
    bundle: DagBundle | None = None,
    tree: Path | None = None,
    hand_over: HandOver = HandOver.NO,
    trial_index: int = 0,
    owner: str = "",
) -> Ticket:
    """Pack the user code, and store the trial and its gang request. Repeatable by key. Blocks.

    :param folder: where a relative ``model_dir`` starts
    :param trial: number and hyperparameters of a planned trial; None = trial 0 with the constants
    :param gang: held gang that the trial uses; None = the trial waits for a gang of its own
    :param bundle: Airflow's bundle of the DAG file
    :param tree: folder whose state in git is that of the code; None = the folder of the code
    :param hand_over: whether the caller leaves the trial to a triggerer at once, which starts it once it has slots
    :param trial_index: number of the trial among those of the same key
    :param owner: user to whom a new experiment belongs
    :raises GangEndedError: the held gang has ended, or is held under another token
    :raises GangMismatchError: the held gang has other slots than the configuration requests
    :raises UnsupportedFieldError: the configuration uses a feature that this version does not have
    :raises UnplaceableError: no set of the pool's hosts can ever serve it
    :raises PayloadError: the user code cannot be packed
    :raises ConfigError: ``searcher.source_checkpoint``, ``inference.weights`` or the script of the entrypoint does not
        exist
    """
    trial = trial or {}
    make = _prepared(hook, stored, key, folder, trial.get("payload"), bundle, tree)
    submission = replace(make(trial, gang), hand_over=hand_over, trial_index=trial_index, owner=owner)
    if gang is not None:
        return hook.store.gangs.submit_trial(submission, gang.token)
    return hook.store.trials.submit(submission)


def submit_several(
    hook: DtrainHook,
    stored: Config,
    trials: Sequence[Mapping[str, Any]],
    *,
    key: TrialKey,
    folder: Path,
    bundle: DagBundle | None = None,
    hand_over: HandOver = HandOver.NO,
    owner: str = "",
) -> list[Ticket]:
    """Submit several trials of one task, with the same code. Repeatable by key. Blocks. Raises like :func:`submit`.

    A trial that has a result from before the task was cleared is not submitted again.

    :param trials: number and hyperparameters of each planned trial, of one search
    :param owner: user to whom a new experiment belongs
    """
    if len(trials) > (most := hook.store.searches.get(int(trials[0]["search_id"])).max_trials):
        message = f"{len(trials)} trials, and the search has {most}. Clear the task that plans the trials"
        raise ConfigError([Problem(path="trial.trials", message=message)])
    make = _prepared(hook, stored, key, folder, trials[0].get("payload"), bundle, None)
    submissions = [
        replace(make(trial, None), trial_index=index, keeps_result=True, hand_over=hand_over, owner=owner)
        for index, trial in enumerate(trials)
    ]
    return list(hook.store.trials.submit_several(submissions))


def _prepared(
    hook: DtrainHook,
    stored: Config,
    key: TrialKey,
    folder: Path,
    payload: str | None,
    bundle: DagBundle | None,
    tree: Path | None,
) -> Callable[[Mapping[str, Any], HeldGang | None], TrialSubmission]:
    """Check the configuration, store the code, and return a function that makes the submission of a trial.

    :param payload: digest of code in the store; None = it is packed now
    """
    from airflow_provider_dtrain.core.config import refuse_unsupported
    from airflow_provider_dtrain.engine.attempt.job import source_of
    from airflow_provider_dtrain.store.configs import model_of

    config = model_of(stored)
    refuse_unsupported(config, stored.origins)
    source_of(hook.store, config, stored.secrets)
    hook.ensure_local()
    git = _git(hook.store, config, key, tree or folder, payload)
    source = {"git": asdict(git), "bundle": None if bundle is None else asdict(bundle)}
    code = _payload(hook.store, config, folder, payload)
    return partial(_submission, hook.store, stored, config, code, source, key)


def _git(store: Store, config: ExperimentConfig, key: TrialKey, folder: Path, payload: str | None) -> GitState:
    """Return the state of the code in git: as its sender had it, else as the machine of the task has it."""
    from airflow_provider_dtrain.hosts.work_tree import git_state
    from airflow_provider_dtrain.resources.provenance import GitState

    if payload is None:
        return git_state(folder / (config.model_dir or "."))
    submission = store.submissions.find(key.dag_id, key.run_id)
    if submission is None or submission.git is None:
        return GitState(problem="the code was stored without it")
    return GitState(**submission.git)


def _submission(
    store: Store,
    stored: Config,
    config: ExperimentConfig,
    payload: str,
    source: Mapping[str, Any],
    key: TrialKey,
    trial: Mapping[str, Any],
    gang: HeldGang | None,
) -> TrialSubmission:
    from airflow_provider_dtrain.store.records.trials import TrialSubmission

    search = store.searches.get(int(trial["search_id"])) if trial.get("search_id") is not None else None
    seed = search.seed if search is not None else config.reproducibility.experiment_seed or 0
    number = int(trial.get("number", 0))
    resources = config.resources
    pool = resources.pool or (store.gangs.get(gang.allocation_id).pool if gang is not None else None)
    if pool is None and (original := store.submissions.reproduced(key)) is not None:
        pool = store.attempts.get(store.trials.get(original).attempt_id).pool
    return TrialSubmission(
        key=key,
        experiment_name=search.experiment if search is not None else config.name or _name_of(config, key),
        config_id=stored.config_id,
        payload=payload,
        source=source,
        pool=choose_pool(store, pool),
        slots=resources.slots_per_trial,
        priority=resources.priority,
        is_single_host=resources.is_single_host,
        number=number,
        hparams=_hparams(config, trial, seed, number),
        seed=trial_seed(seed, number),
        search_id=search.search_id if search is not None else None,
        bracket=int(trial.get("bracket", 0)),
        max_restarts=config.max_restarts,
        on_unplaceable=config.on_unplaceable,
        weight=resources.weight,
        max_slots=resources.max_slots,
        project=config.project or DEFAULT_PROJECT,
        max_runtime_s=config.max_runtime,
        preemptible=may_preempt(config),
        allocation_id=gang.allocation_id if gang is not None else None,
    )


def _name_of(config: ExperimentConfig, key: TrialKey) -> str:
    """Return the name of an experiment whose configuration has none.

    A batch inference is no trial of the training in the same DAG, with whose metrics its own would be compared.
    """
    return key.dag_id if config.inference is None else f"{key.dag_id}.{key.task_id}"[:128]


def _hparams(config: ExperimentConfig, trial: Mapping[str, Any], seed: int, number: int) -> Hyperparameters | None:
    """Return the hyperparameters of a trial, or None when it samples them at its start.

    :raises ConfigError: the configuration describes a search, and the search was not planned
    """
    from airflow_provider_dtrain.core.hyperparameters.space import sample

    if trial.get("search_id") is not None:
        return None if trial.get("hparams") is None else dict(trial["hparams"])
    if config.searcher.name != "single":
        message = (
            f"{config.searcher.name} has many trials, and this task runs one. Plan them with a PlanTrialsOperator, or "
            f"use task_groups.experiment()"
        )
        raise ConfigError([Problem(path="searcher.name", message=message)])
    drawn = sample(config.hyperparameters, experiment_seed=seed, trial=number)
    return {**drawn, **(trial.get("hparams") or {})}


def may_preempt(config: ExperimentConfig) -> bool | None:
    """Return whether a trial can be preempted, or None: as soon as it has written a checkpoint.

    A batch inference writes none. It resumes from its output folder at any time.
    """
    return True if config.preemptible is None and config.inference is not None else config.preemptible


def revive(store: Store, ticket: Ticket) -> None:
    """Start the next attempt of a trial that failed because of a host or the store. Blocks.

    Other trials are left alone. A trial that the user's code or a user ended stays ended, unless its follower died
    before it could restart the trial.
    """
    view = store.attempts.get(ticket.attempt_id)
    if (counted := restart_of(view)) is None:
        return
    # The first caller starts the attempt. A second caller continues with the same attempt.
    with contextlib.suppress(StaleWatchError, ConflictError):
        watch = store.attempts.watch(view.attempt_id, watcher="retry")
        store.attempts.next(view.attempt_id, watch, failure=view.failure or {}, counted=counted)


def hand_over(store: Store, ticket: Ticket) -> None:
    """Leave a trial of an earlier try to the triggerer, as :func:`submit` does with a new one. Blocks.

    A running attempt keeps its follower until the triggerer takes it over.
    """
    if store.attempts.get(ticket.attempt_id).state == AttemptState.WAITING:
        with contextlib.suppress(StaleWatchError):
            store.attempts.hand_over(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="retry"))


def _payload(store: Store, config: ExperimentConfig, folder: Path, given: str | None) -> str:
    """Return the digest of the stored code, or without stored code that of ``model_dir`` now."""
    from airflow_provider_dtrain.engine.submission.entry import code_folder

    if given is None:
        return put_code(store, code_folder(config, folder), _log.info, _log.warning)
    if not store.payloads.use(given):
        raise NotFoundError(
            f"The store no longer has code {given[:12]}. Create the experiment again: airflow dtrain experiments create"
        )
    return given


def put_code(store: Store, folder: Path, inform: Callable[[str], object], warn: Callable[[str], object]) -> str:
    """Pack a folder into the store, unless it is there already, and return its digest. Blocks.

    :param inform: prints which folder was packed, and its size
    :param warn: prints which files are not sent to hosts
    :raises PayloadError: the folder cannot be packed
    """
    from airflow_provider_dtrain.hosts.payload import pack

    payload = pack(folder)
    inform(f"The code is {folder.resolve()}, packed to {payload.size_text}.")
    if payload.notice:
        warn(payload.notice)
    if not store.payloads.use(payload.digest):
        store.payloads.put(payload.digest, payload.content)
    return payload.digest
