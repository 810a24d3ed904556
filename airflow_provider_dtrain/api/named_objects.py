"""Names in a configuration that stand for objects of Airflow or of the store, with the rights of the user."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.config.inference import EXPERIMENT
from airflow_provider_dtrain.engine.attempt.source_checkpoint import pinned, source_field, trial_of
from airflow_provider_dtrain.engine.submission.granted import collect_problem
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, Problem


def require_names(call: Call, config: ExperimentConfig) -> None:
    """Check that the user may use everything that a configuration names.

    :raises ConfigError: all problems at once. An object that the user may not read does not exist for them
    """
    problems = [*_connection(call, config), *_source(call, config)]
    if (problem := collect_problem(config)) is not None:
        problems.append(problem)
    if problems:
        raise ConfigError(problems)


def _connection(call: Call, config: ExperimentConfig) -> Iterator[Problem]:
    named = {
        "checkpoint_storage.conn_id": getattr(config.checkpoint_storage, "conn_id", None),
        "environment.index_conn_id": config.environment.index_conn_id,
        "environment.registry_conn_id": config.environment.registry_conn_id,
    }
    for path, conn_id in named.items():
        if conn_id is not None and not call.access.may_use_connection(conn_id):
            message = (
                f"you may not read the connection '{conn_id}', whose credentials would be used for your code. Ask an "
                "administrator of Airflow for the permission to read it, or name another one"
            )
            yield Problem(path=path, message=message)


def _source(call: Call, config: ExperimentConfig) -> Iterator[Problem]:
    field, named = source_field(config)
    if named is None:
        return
    if named.startswith(EXPERIMENT):
        try:
            pinned(call.store, {"inference": {"weights": named}}, call.access.may_read)
        except ConfigError as error:
            yield from error.problems
        return
    trial_id = trial_of(call.store, named)
    if trial_id is not None:
        if not _may_read_trial(call, trial_id):
            words = f"trial {trial_id}" if named.startswith("trial:") else f"a checkpoint at {named}"
            yield Problem(path=field, message=f"there is no {words}")
    elif "://" not in named:
        # Tasks read files of their machine that only they may read.
        message = f"must name a trial, or the path or URL of a checkpoint that a trial has written, got '{named}'"
        yield Problem(path=field, message=message)


def _may_read_trial(call: Call, trial_id: int) -> bool:
    try:
        return call.access.may_read(call.store.trials.get(trial_id).key.dag_id)
    except NotFoundError:
        return False
