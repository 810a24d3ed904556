"""Reproductions: the record of a trial, from which it is run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_dtrain.core.config.secrets import VARIABLES, masked_paths, put_secrets
from airflow_provider_dtrain.engine.submission.granted import grant
from airflow_provider_dtrain.errors import ConfigError, ConflictError, Problem, UnplaceableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.store.records.trials import Config, TrialView
    from airflow_provider_dtrain.store.store import Store

_PREFIX: Final = f"{VARIABLES}."


class GrantedReproduction(NamedTuple):
    """A DAG run that may run a trial again."""

    #: The id with which it must be triggered.
    run_id: str
    config_id: int
    #: Its parameters.
    conf: dict[str, Any]


def grant_reproduction(
    store: Store, trial: TrialView, given: Mapping[str, str], *, dag_id: str, user_id: str | None, copies: bool
) -> GrantedReproduction:
    """Store what a DAG run may use that runs a trial again. Blocks. The caller has asked for the rights of the user.

    :param given: see :func:`with_secrets`, as ``copies``
    :param user_id: see :func:`~airflow_provider_dtrain.engine.submission.granted.grant`
    :raises ConflictError: the store no longer has its code
    :raises ConfigError: a secret is missing, or a name is none of its secrets
    """
    code = recorded_code(store, trial)
    stored = with_secrets(store, trial, given, copies=copies)
    git = store.provenance.git_of(trial.experiment_id, code)
    run_id = grant(store, dag_id, stored, code, user_id, git=git, reproduces=trial.trial_id)
    conf = {"config": {"config_id": stored.config_id, "digest": stored.digest}, "payload": code}
    return GrantedReproduction(run_id, stored.config_id, conf)


def recorded_code(store: Store, trial: TrialView) -> str:
    """Return the digest of the stored code of a trial. Blocks.

    :raises ConflictError: the store no longer has it
    """
    digest = store.attempts.get(trial.attempt_id).payload
    if digest is None or not store.payloads.use(digest):
        raise ConflictError(
            f"Trial {trial.trial_id} cannot be run again: its code was removed from the store. Start the experiment "
            "with its code: airflow dtrain experiments create CONFIG MODEL_DIR"
        )
    return digest


def recorded_config(store: Store, trial: TrialView) -> ExperimentConfig:
    """Return the configuration of a trial that can be run again. Blocks.

    :raises ConflictError: the trial is a batch inference, or has no hyperparameters yet
    :raises UnplaceableError: no set of the pool's hosts can ever run it
    """
    from airflow_provider_dtrain.core.config import refuse_unsupported
    from airflow_provider_dtrain.engine.submission.fit import never_fits
    from airflow_provider_dtrain.store.configs import model_of

    stored = store.configs.get(trial.config_id)
    config = model_of(stored)
    if config.inference is not None:
        raise ConflictError(
            f"Trial {trial.trial_id} is a batch inference, which has no weights to compare. Start it again with: "
            "airflow dtrain infer CONFIG"
        )
    if not trial.is_drawn:
        raise ConflictError(f"Trial {trial.trial_id} has no hyperparameters yet: it draws them when it starts.")
    refuse_unsupported(config, stored.origins)
    reason = never_fits(store, store.attempts.get(trial.attempt_id).pool, config)
    if reason is not None and config.on_unplaceable == "fail":
        raise UnplaceableError(reason)
    return config


def with_secrets(store: Store, trial: TrialView, given: Mapping[str, str], *, copies: bool) -> Config:
    """Return the stored configuration with which a trial is run again. Blocks.

    Code can show all secrets that it gets. So those of a trial are copied only for the user who submitted it.

    :param given: name of a private variable, or path of another secret -> its value
    :param copies: the user may have the secrets of the trial
    :raises ConfigError: a secret is missing, or a name is none of its secrets; all of them at once
    """
    from airflow_provider_dtrain.hooks.secrets import opened, seal

    stored = store.configs.get(trial.config_id)
    private = masked_paths(stored.document)
    values = {path: value for name, value in given.items() for path in (_path(name, private),)}
    if problems := [*_problems(trial.trial_id, private, values, copies=copies)]:
        raise ConfigError(problems)
    if not values:
        return stored
    own = opened(stored.secrets) if copies else {}
    masked, sealed = seal(put_secrets(stored.document, {**own, **values}))
    return store.configs.put(
        masked,
        origins=stored.origins,
        template=stored.template,
        template_version=stored.template_version,
        secrets=sealed,
    )


def _path(name: str, private: list[str]) -> str:
    return f"{_PREFIX}{name}" if f"{_PREFIX}{name}" in private else name


def _problems(trial_id: int, private: list[str], values: Mapping[str, str], *, copies: bool) -> Iterator[Problem]:
    for path in private:
        if path not in values and not copies:
            name = path.removeprefix(_PREFIX)
            message = f"is private, and another user submitted trial {trial_id}. Give it again: --secret {name}"
            yield Problem(path=path, message=message)
    for path in values.keys() - set(private):
        yield Problem(path=path[:200], message=f"is no private variable or secret of trial {trial_id}")
