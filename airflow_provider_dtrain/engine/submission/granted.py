"""Rights of a DAG run whose configuration comes from its parameters.

A user who may trigger a DAG may have no right on the connections, the code and the checkpoints that its tasks reach. So
the API asks for the rights of the user who requests a run, and writes a submission. The tasks of a run without a
submission accept only names that need no right.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.config.forms import is_path_like, is_rendered
from airflow_provider_dtrain.engine.attempt.source_checkpoint import source_field
from airflow_provider_dtrain.errors import ConfigError, Problem
from airflow_provider_dtrain.store.records.submissions import Submission

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.resources.provenance import GitState
    from airflow_provider_dtrain.store.records.trials import Config, TrialKey
    from airflow_provider_dtrain.store.store import Store

_HOW: Final = (
    "needs a right of its user. A DAG run that is triggered without dtrain has none. Start the experiment with: dtrain "
    "experiments create CONFIG. Or use the page of new experiments"
)


def grant(
    store: Store,
    dag_id: str,
    stored: Config,
    payload: str | None,
    user_id: str | None,
    *,
    git: GitState | None = None,
    reproduces: int | None = None,
    fork_of: int | None = None,
) -> str:
    """Store what a DAG run may use, and return the id with which it must be triggered. Blocks.

    The caller has asked for the rights of the user. No other DAG run gets this id, because its end is random.

    :param payload: digest of stored code; None = the code in the folder of the DAG
    :param user_id: Airflow's id of the user; None = an administrator with the command line
    :param git: state of the code in git, as the machine of the user has it; None = it is not known
    :param reproduces: the trial that the DAG run runs again; None = it plans the trials of the configuration
    :param fork_of: the experiment of which the DAG run is a fork; None = it is none
    """
    run_id = f"manual__{store.db.now().isoformat()}_{secrets.token_hex(8)}"
    store.submissions.add(
        Submission(
            dag_id=dag_id,
            run_id=run_id,
            config_id=stored.config_id,
            payload=payload,
            user_id=user_id,
            git=None if git is None else asdict(git),
            reproduces=reproduces,
            fork_of=fork_of,
        )
    )
    return run_id


def check_parameters(
    store: Store,
    key: TrialKey,
    config: str | Mapping[str, Any],
    template: str | Mapping[str, Any] | None,
    payload: str | None,
) -> Submission | None:
    """Return the submission of a DAG run after a check of its parameters, None for a run without one. Blocks.

    :param key: key of the task that plans
    :raises ConfigError: the parameters are not those of the submission, or name something that only one can grant
    """
    found = store.submissions.find(key.dag_id, key.run_id)
    if found is not None:
        _check_same(found, config, payload)
        return found
    problems = []
    if isinstance(config, Mapping) and is_rendered(config):
        problems.append(Problem(path="config", message=f"is a stored configuration, which {_HOW}"))
    if payload is not None:
        problems.append(Problem(path="payload", message=f"is the digest of stored code, which {_HOW}"))
    for path, value in (("config", config), ("template", template)):
        if isinstance(value, str) and is_path_like(value):
            message = "must be a text, got the path of a file. The parameters of a DAG run name no files of workers"
            problems.append(Problem(path=path, message=message))
    if problems:
        raise ConfigError(problems)
    return None


def check_names(config: ExperimentConfig) -> None:
    """Check that an effective configuration names nothing that only a submission can grant.

    :raises ConfigError: it names a connection, a source checkpoint, or a folder outside of the DAG's
    """
    problems = list(_names(config))
    if problems:
        raise ConfigError(problems)


def check_planned(store: Store, key: TrialKey, trial: Mapping[str, Any] | None) -> None:
    """Check that a planned trial is one of the plan of its DAG run, with the code that was granted to it. Blocks.

    XComs may be edited by users who have no other right on a DAG.

    :param key: key of the trial's task
    :raises ConfigError: it is not
    """
    planned = trial or {}
    check_search(store, key, planned.get("search_id"))
    granted = store.submissions.find(key.dag_id, key.run_id)
    if planned.get("payload") != (None if granted is None else granted.payload):
        raise ConfigError([Problem(path="trial.payload", message="must be the code of this DAG run's submission")])


def check_search(store: Store, key: TrialKey, search_id: object) -> None:
    """Check that a search was planned by a task of the same DAG run. Blocks.

    :param key: key of the calling task
    :param search_id: from an XCom
    :raises ConfigError: it was not
    """
    search = store.searches.get(search_id) if isinstance(search_id, int) else None
    if search is None or (search.key.dag_id, search.key.run_id) != (key.dag_id, key.run_id):
        raise ConfigError([Problem(path="search_id", message="must be the search that this DAG run has planned")])


def folder_problem(config: ExperimentConfig) -> Problem | None:
    """Return the problem of a ``model_dir`` that is not below the folder of the DAG, else None."""
    folder = PurePath(config.model_dir or "")
    if not folder.is_absolute() and ".." not in folder.parts:
        return None
    message = (
        f"must be below the folder of the DAG, without '..', got '{config.model_dir}'. To run code of another folder, "
        "send it: dtrain experiments create CONFIG MODEL_DIR"
    )
    return Problem(path="model_dir", message=message)


def collect_problem(config: ExperimentConfig) -> Problem | None:
    """Return the problem of results that tasks write to a folder of their machine, else None."""
    if config.inference is None or not config.inference.collect:
        return None
    message = (
        "writes to any folder of the Airflow machine with its account, for which a user needs a DAG file or 'airflow "
        "dtrain'. Without them, let outputs.path be a bucket or a folder that the hosts share"
    )
    return Problem(path="inference.collect", message=message)


def _check_same(found: Submission, config: str | Mapping[str, Any], payload: str | None) -> None:
    given = config.get("config_id") if isinstance(config, Mapping) and is_rendered(config) else None
    if (str(given), payload) != (str(found.config_id), found.payload):
        message = "the parameters of the DAG run are not those that its user submitted. Start the experiment again"
        raise ConfigError([Problem(path="config", message=message)])


def _names(config: ExperimentConfig) -> Iterator[Problem]:
    if getattr(config.checkpoint_storage, "conn_id", None) is not None:
        yield Problem(path="checkpoint_storage.conn_id", message=f"names a connection of Airflow, which {_HOW}")
    for name in ("index_conn_id", "registry_conn_id"):
        if getattr(config.environment, name) is not None:
            yield Problem(path=f"environment.{name}", message=f"names a connection of Airflow, which {_HOW}")
    field, source = source_field(config)
    if source is not None:
        yield Problem(path=field, message=f"names a checkpoint, which {_HOW}")
    yield from (problem for problem in (folder_problem(config), collect_problem(config)) if problem is not None)
