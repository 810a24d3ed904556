"""The configuration of an experiment, validated."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from airflow_provider_dtrain.core.config.normalize import Normalized, normalize
from airflow_provider_dtrain.core.config.problems import problems_of
from airflow_provider_dtrain.core.config.search_rules import missing_length
from airflow_provider_dtrain.core.config.sections import (
    DEFAULT_LOG_POLICIES,
    AnyPeriod,
    BindMount,
    Environment,
    LogPolicy,
    Optimizations,
    Period,
    Profiling,
    Reproducibility,
    Resources,
)
from airflow_provider_dtrain.core.config.types import (
    CodePath,
    Entrypoint,
    Interface,
    Line,
    PortRange,
    Positive,
    Seconds,
    Section,
    TemplateName,
    Text,
    Title,
    is_trial_class,
    refuse,
    split_command,
)
from airflow_provider_dtrain.core.config.unions import (
    CheckpointStorage,
    RunFolderStorage,
    Searcher,
    SingleSearcher,
)
from airflow_provider_dtrain.core.documents import load_yaml
from airflow_provider_dtrain.core.merge import merge_config
from airflow_provider_dtrain.core.search_space import check_space
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Runs a trial class, in the interpreter of the host.
HARNESS: Final = ("python", "-m", "airflow_provider_dtrain.train.harness")


class ForeignFieldWarning(UserWarning):
    """A field of Determined for what is not here was left out."""


def _space(value: dict[str, Any]) -> dict[str, Any]:
    problems = check_space(value)
    if problems:
        raise PydanticCustomError("dtrain", "hyperparameters", {"problems": problems})
    return value


def _distinct_places(value: list[BindMount]) -> list[BindMount]:
    places = [mount.container_path.rstrip("/") for mount in value]
    twice = sorted({place for place in places if places.count(place) > 1})
    if twice:
        raise refuse(f"container_path {', '.join(twice)} is given twice")
    return value


def _zero() -> Period:
    return Period(batches=0)


def _default_policies() -> list[LogPolicy]:
    return [LogPolicy.model_validate(policy) for policy in DEFAULT_LOG_POLICIES]


class ExperimentConfig(Section):
    """Everything that an experiment can say.

    Build one with :meth:`model_validate` or :meth:`parse_yaml`: both read Determined's spelling,
    take None for absent and raise :class:`ConfigError` with every problem at once.
    """

    name: Title | None = None
    description: Text | None = None
    labels: list[Line] = []
    template: TemplateName | None = None
    entrypoint: Entrypoint | None = None
    #: User code that travels to the hosts; the folder of the DAG file when it is not given.
    model_dir: CodePath | None = None
    hyperparameters: Annotated[dict[str, Any], AfterValidator(_space)] = {}
    searcher: Searcher = Field(default_factory=SingleSearcher)
    resources: Resources = Resources()
    optimizations: Optimizations = Optimizations()
    reproducibility: Reproducibility = Reproducibility()
    profiling: Profiling = Profiling()
    checkpoint_storage: CheckpointStorage = Field(default_factory=RunFolderStorage)
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    min_validation_period: AnyPeriod = Field(default_factory=_zero)
    min_checkpoint_period: AnyPeriod = Field(default_factory=_zero)
    #: Batches between reports and looks for stop or pause.
    scheduling_unit: Positive = 100
    records_per_epoch: Positive | None = None
    perform_initial_validation: bool = False
    #: Per trial, failures of the user's code only.
    max_restarts: int = Field(default=5, ge=0, le=10_000)
    log_policies: list[LogPolicy] = Field(default_factory=_default_policies)
    #: Seconds a preempted trial has for its checkpoint.
    preemption_timeout: Seconds = 3600.0
    environment: Environment = Environment()
    bind_mounts: Annotated[list[BindMount], AfterValidator(_distinct_places)] = []
    network_interface: Interface = "auto"
    #: ``low-high``, for firewalls between the hosts.
    port_range: PortRange | None = None
    data: dict[str, Any] = Field(default={}, repr=False)
    tensorboard: bool = False
    #: None: as soon as the trial has written a checkpoint.
    preemptible: bool | None = None
    launch: Literal["per_slot", "per_host"] = "per_slot"
    warm_start: bool = True
    on_unplaceable: Literal["fail", "wait"] = "fail"
    #: Seconds without progress after which a gang is ended.
    hang_timeout: Seconds = 1800.0
    #: Seconds a trial waits for the searcher before it goes on.
    decision_timeout: Seconds = 30.0
    #: Seconds a run may last; lets it start on reserved hosts.
    max_runtime: Seconds | None = None

    @classmethod
    def model_validate(cls, obj: Any) -> Self:  # type: ignore[override]
        """Return the validated configuration.

        :param obj: a mapping as a person writes it; tags without a template below mean the value, or none
        :raises ConfigError: with every problem of the document
        """
        if isinstance(obj, cls):
            return obj
        return cls._from(normalize(obj), "configuration")

    @classmethod
    def parse_yaml(cls, text: str | bytes, *, source: str = "configuration") -> Self:
        """Return the validated configuration that YAML text holds.

        :param text: at most 1 MiB
        :param source: what the text is, for error messages
        :raises ConfigError: with every problem of the document
        """
        return cls._from(normalize(load_yaml(text, source=source), source=source), source)

    @classmethod
    def _from(cls, normalized: Normalized, source: str) -> Self:
        document = merge_config({}, normalized.document)
        config, problems = cls.checked(document)
        if config is None or normalized.problems:
            raise ConfigError([*normalized.problems, *problems], source=source)
        for message in normalized.warnings:
            warnings.warn(message, ForeignFieldWarning, stacklevel=4)
        return config

    @classmethod
    def checked(cls, document: dict[str, Any], *, partial: bool = False) -> tuple[Self | None, list[Problem]]:
        """Return the configuration, or None, and the problems of a document in our own vocabulary.

        :param document: plain, without tags and None
        :param partial: whether required fields may be missing
        """
        try:
            return super().model_validate(document), []
        except ValidationError as error:
            errors = error.errors(include_url=False)
            found = problems_of(errors, cls, document, partial=partial)
            return None, found if partial else [*found, *missing_length(document)]

    @property
    def trial_class(self) -> str | None:
        """The ``module:TrialClass`` of the entrypoint; None for a command."""
        return self.entrypoint if isinstance(self.entrypoint, str) and is_trial_class(self.entrypoint) else None

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command that a rank runs, without a shell; empty without an entrypoint."""
        if self.entrypoint is None:
            return ()
        if self.trial_class:
            return (*HARNESS, self.trial_class)
        return tuple(split_command(self.entrypoint))

    @property
    def port_bounds(self) -> tuple[int, int] | None:
        """``port_range`` as numbers, both included."""
        if self.port_range is None:
            return None
        low, high = self.port_range.split("-")
        return int(low), int(high)
