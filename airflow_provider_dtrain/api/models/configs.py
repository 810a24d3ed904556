"""Configurations: effective ones with the origin of each value, and their validation."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from airflow_provider_dtrain.api.bounds import PATH_CHARS
from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.store.queries.rights import ID_MOST


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


class Document(Model):
    """A configuration that a user types: body of a validation, and of a start."""

    #: YAML.
    config: str = Field(max_length=1024 * 1024)
    #: Name of a stored template; None: the one that the configuration names.
    template: Annotated[str, Field(max_length=PATH_CHARS)] | None = None
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


class TemplateRow(Model):
    """One stored template."""

    name: str
    version: int
    set_by: str
    set_at: datetime


class Templates(Model):
    """All stored templates."""

    rows: list[TemplateRow]
