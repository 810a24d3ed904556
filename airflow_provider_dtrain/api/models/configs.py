"""Configurations: effective ones with the origin of each value, and their validation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_provider_dtrain.api.bounds import NUMBER_MOST, PATH_CHARS
from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.store.queries.rights import ID_MOST

Option = Annotated[str, Field(max_length=PATH_CHARS)] | None


class ConfigLine(Model):
    """One line of an effective configuration."""

    text: str
    #: Dotted path of the value; empty for a line without one.
    path: str
    #: ``template``, ``config``, ``pool``, ``default`` or ``dag_run``; empty for a line without a value.
    origin: str


class ShownConfig(Model):
    """An effective configuration. Secrets are masked."""

    config_id: int
    yaml: str
    template: str | None
    template_version: int | None
    lines: list[ConfigLine]


class InferenceOptions(Model):
    """Options of a batch inference, which override those of a configuration. None = as the configuration says."""

    processor: Option = None
    inputs: Annotated[list[Annotated[str, Field(max_length=PATH_CHARS)]], Field(max_length=1000)] | None = None
    outputs: Option = None
    weights: Option = None
    batch_size: Option = None
    on_bad_shard: Option = None
    on_bad_row: Option = None
    slots: Annotated[int, Field(ge=1, le=NUMBER_MOST)] | None = None
    pool: Option = None


class ConfigText(Model):
    """A configuration as a user writes it."""

    #: YAML.
    config: str = Field(max_length=1024 * 1024)
    #: Name of a stored template; None: the one that the configuration names.
    template: Annotated[str, Field(max_length=PATH_CHARS)] | None = None
    #: Of a batch inference.
    inference: InferenceOptions | None = None


class Document(ConfigText):
    """A configuration that a user types: body of a validation, and of a start."""

    #: Experiment whose code the new one uses, and whose sealed secrets the masked values stand for.
    fork_of: Annotated[int, Field(le=ID_MOST)] | None = None
    #: Digest of code that was sent to ``/code``; empty: the client sends it later. None: the code of the fork, or that
    #: below the folder of the DAG.
    payload: str | None = Field(default=None, max_length=64, pattern=r"^([0-9a-f]{64})?$")


class PlacedProblem(Model):
    """A problem with its place in the text."""

    path: str
    #: From 1.
    line: int
    column: int
    message: str
    severity: Literal["error", "warning"]


class ConfigSummary(Model):
    """The experiment that a configuration describes."""

    name: str
    method: str
    #: Number of planned trials.
    trials: int
    slots_per_trial: int
    pool: str
    #: The hosts of the pool can run a trial, now or later.
    fits: bool
    fits_reason: str
    #: The code of its trials in words, and whether this server could check it.
    code: str


class Validation(Model):
    """Problems of a configuration, and without errors its summary."""

    problems: list[PlacedProblem]
    summary: ConfigSummary | None
    #: The effective configuration, secrets masked; empty with errors.
    effective: list[ConfigLine]


class TemplateText(Model):
    """Body of a check and of a change of a template."""

    #: YAML.
    text: str = Field(max_length=1024 * 1024)


class CheckedTemplate(Model):
    """Problems of a template."""

    problems: list[PlacedProblem]
