"""Forks: another experiment with the configuration, code and sealed secrets of an earlier one."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.models.experiments import Fork
from airflow_provider_dtrain.core.config.secrets import masked_paths, put_secrets, unmasked
from airflow_provider_dtrain.errors import ConfigError, Problem
from airflow_provider_dtrain.hooks.secrets import opened
from airflow_provider_dtrain.resources.experiments import ExperimentDetail
from airflow_provider_dtrain.store.queries.experiments import config_of
from airflow_provider_dtrain.store.queries.rights import readable_experiment


def fork_of(call: Call, experiment: ExperimentDetail) -> Fork:
    """Return whether the user can fork an experiment, and otherwise the reason."""
    if experiment.config_id is None:
        return Fork(possible=False, reason="It has no trial and no plan, so it has no configuration yet.")
    reason = call.access.starting.hint
    return Fork(possible=not reason, reason=reason)


def payload_of(call: Call, experiment_id: int) -> str | None:
    """Return the digest of an experiment's stored code, None when the store no longer has it.

    It is also None for a user who may not read the code of the experiment's DAG.

    :raises NotFoundError: the user may not read the experiment
    """
    entry = readable_experiment(call.store, call.access, experiment_id)
    if not call.access.may_read_code(entry.view.dag_id):
        return None
    digest = call.store.trial_table.payload(experiment_id)
    return digest if digest is not None and call.store.payloads.has(digest) else None


def forked(call: Call, document: dict[str, Any], experiment_id: int | None) -> dict[str, Any]:
    """Return a document with the secrets of a forked experiment in place of masked values.

    Only the user who submitted the forked experiment gets them: code can show all secrets that it gets.

    :param experiment_id: the forked experiment; None = the document must hold no masked value
    :raises ConfigError: a masked value has no secret
    """
    masked = masked_paths(document)
    if not masked:
        return document
    if experiment_id is not None:
        entry = readable_experiment(call.store, call.access, experiment_id)
        config = config_of(call.store, experiment_id)
        if config is not None and is_own(call, entry.view.dag_id, entry.view.run_id):
            document = unmasked(document, put_secrets(config.document, opened(config.secrets)))
            masked = masked_paths(document)
    if masked:
        message = (
            "the value is masked, and only the user who submitted an experiment gets its secrets for a fork. Write the "
            "value"
        )
        raise ConfigError([Problem(path=path, message=message) for path in masked])
    return document


def is_own(call: Call, dag_id: str, run_id: str) -> bool:
    """Return whether the user has submitted a DAG run, so that its secrets are theirs."""
    found = call.store.submissions.find(dag_id, run_id)
    return found is not None and found.user_id == call.access.user_id
