"""The configuration with which a fork begins: the values that its source set, without defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.configs import config_lines
from airflow_provider_dtrain.api.forks import payload_of
from airflow_provider_dtrain.api.models.experiments import ForkSource
from airflow_provider_dtrain.api.validation import template_of
from airflow_provider_dtrain.core.config import mask
from airflow_provider_dtrain.core.config.submitted import set_by
from airflow_provider_dtrain.engine.submission.assembly import assembled
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.store.records.pages import ExperimentEntry
from airflow_provider_dtrain.store.records.trials import Config

#: Origins of values in the user's own document: the file, and the parameters of the DAG run.
SUBMITTED = frozenset({"config", "dag_run"})


def fork_source(call: Call, entry: ExperimentEntry, config: Config) -> ForkSource:
    """Return the submitted configuration of an experiment, secrets masked.

    A fork gets the values of the template from the stored template while they are unchanged, and as text otherwise.
    """
    document = mask(config.document)
    own = set_by(document, config.origins, SUBMITTED)
    template = config.template if _is_same(call, own, config.template, document) else None
    if template is None:
        own = set_by(document, config.origins, {*SUBMITTED, "template"})
        own.pop("template", None)
    # A configuration of an unknown origin is shown as a whole.
    lines = config_lines(own or document, {})
    text = "\n".join(line.text for line in lines) + "\n"
    digest = payload_of(call, entry.view.experiment_id)
    # Each trial is submitted with its code.
    removed = digest is None and any(entry.view.trials.values())
    return ForkSource(yaml=text, payload_digest=digest, code_removed=removed, template=template)


def _is_same(call: Call, own: Mapping[str, Any], template: str | None, document: Mapping[str, Any]) -> bool:
    """Return whether a stored template still completes the submitted values to the same configuration."""
    if template is None:
        return False
    try:
        found = assembled(call.store, own, template_of(call, template)).effective.document
    except ConfigError:
        return False
    return _without_seed(mask(found)) == _without_seed(document)


def _without_seed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the seed of the experiment, which each start draws."""
    rest = {**document.get("reproducibility", {})}
    rest.pop("experiment_seed", None)
    return {**document, "reproducibility": rest}
