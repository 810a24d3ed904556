"""Validated configuration of an experiment."""

from __future__ import annotations

import posixpath
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from airflow_provider_dtrain.core.config.commands import check_entrypoint, split_command
from airflow_provider_dtrain.core.config.determined_compat import Normalized, normalize
from airflow_provider_dtrain.core.config.environment import Environment
from airflow_provider_dtrain.core.config.inference import INFERENCE, Inference
from airflow_provider_dtrain.core.config.merge import merge_config
from airflow_provider_dtrain.core.config.problems import problems_of
from airflow_provider_dtrain.core.config.scope import Repair, Scope
from airflow_provider_dtrain.core.config.search_length import missing_length
from airflow_provider_dtrain.core.config.sections import (
    DEFAULT_LOG_POLICIES,
    AnyPeriod,
    BindMount,
    DiagnosisRun,
    LogPolicy,
    Optimizations,
    Period,
    Profiling,
    Reproducibility,
    Resources,
)
from airflow_provider_dtrain.core.config.types import (
    CodePath,
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
)
from airflow_provider_dtrain.core.config.unions import (
    CheckpointStorage,
    RunFolderStorage,
    Searcher,
    SingleSearcher,
)
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.core.documents import ConfigDocument, Hyperparameters, JsonObject
from airflow_provider_dtrain.core.hyperparameters.space import check_space
from airflow_provider_dtrain.core.launchers.launcher import launcher_of
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Command that runs a trial class in the host's interpreter.
HARNESS: Final = ("python", "-m", "airflow_provider_dtrain.train.harness")


#: Maximum rounds of removing invalid fields until the rest is valid: first fields, then rules of a section.
REPAIRS: Final = 4


class ForeignFieldWarning(UserWarning):
    """Warns that a field of Determined without a counterpart here was ignored."""


def _space(value: Hyperparameters) -> Hyperparameters:
    problems = check_space(value)
    if problems:
        raise PydanticCustomError("dtrain", "hyperparameters", {"problems": problems})
    return value


def _distinct_places(value: list[BindMount]) -> list[BindMount]:
    _refuse_twice("container_path", [posixpath.normpath(mount.container_path) for mount in value])
    return value


def _distinct_policies(value: list[LogPolicy]) -> list[LogPolicy]:
    _refuse_twice("name", [policy.name for policy in value if policy.name is not None])
    return value


def _refuse_twice(what: str, names: list[str]) -> None:
    twice = [shown(name) for name, count in Counter(names).items() if count > 1]
    if twice:
        more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
        raise refuse(f"the {what} {', '.join(twice[:5])}{more} is given twice")


def _zero_as_none(value: Any) -> Any:
    """Return None for Determined's default of 0."""
    return None if type(value) is int and value == 0 else value


def _zero() -> Period:
    return Period(batches=0)


def _default_policies() -> list[LogPolicy]:
    return [LogPolicy.model_validate(policy) for policy in DEFAULT_LOG_POLICIES]


class ExperimentConfig(Section):
    """Configuration of one experiment.

    Build one with :meth:`model_validate` or :meth:`parse_yaml`. Both accept Determined's field names,
    treat None as absent and raise :class:`ConfigError` with every problem at once.
    """

    name: Title | None = None
    description: Text | None = None
    labels: list[Line] = []
    #: Groups experiments on pages and in lists.
    project: Title | None = None
    template: TemplateName | None = None
    entrypoint: Annotated[str | list[str], BeforeValidator(check_entrypoint)] | None = None
    #: Folder of user code that is copied to the hosts. Default: the folder of the DAG file.
    model_dir: CodePath | None = None
    hyperparameters: Annotated[Hyperparameters, AfterValidator(_space)] = {}
    #: A batch inference, which has no entrypoint.
    inference: Inference | None = None
    searcher: Searcher = Field(default_factory=SingleSearcher)
    resources: Resources = Resources()
    optimizations: Optimizations = Optimizations()
    reproducibility: Reproducibility = Reproducibility()
    profiling: Profiling = Profiling()
    checkpoint_storage: CheckpointStorage = Field(default_factory=RunFolderStorage)
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    min_validation_period: AnyPeriod = Field(default_factory=_zero)
    min_checkpoint_period: AnyPeriod = Field(default_factory=_zero)
    #: Batches between reports, and between polls for a stop or pause request.
    scheduling_unit: Positive = 100
    records_per_epoch: Annotated[Positive | None, BeforeValidator(_zero_as_none)] = None
    perform_initial_validation: bool = False
    #: Per trial. Counts failures of the user's code only.
    max_restarts: int = Field(default=5, ge=0, le=10_000)
    log_policies: Annotated[list[LogPolicy], AfterValidator(_distinct_policies)] = Field(
        default_factory=_default_policies
    )
    #: Seconds a preempted trial has for its checkpoint.
    preemption_timeout: Seconds = 3600.0
    environment: Environment = Environment()
    bind_mounts: Annotated[list[BindMount], AfterValidator(_distinct_places)] = []
    network_interface: Interface = "auto"
    #: ``low-high``, for firewalls between the hosts.
    port_range: PortRange | None = None
    data: JsonObject = Field(default={}, repr=False)
    tensorboard: bool = False
    #: Experiment trackers that rank 0 sends the metrics to.
    loggers: list[Literal["mlflow", "wandb"]] = []
    #: None: preemptible as soon as the trial has written a checkpoint.
    preemptible: bool | None = None
    #: None: ``per_host`` if the command starts a launcher of ranks such as torchrun, else ``per_slot``.
    launch: Literal["per_slot", "per_host"] | None = None
    #: Python programs are forked from a process on their host that keeps PyTorch imported.
    warm_start: bool = True
    #: Seconds for which that process waits for the next launch of the same program.
    warm_idle: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    on_unplaceable: Literal["fail", "wait"] = "fail"
    #: Seconds without progress after which a gang is ended.
    hang_timeout: Seconds = 1800.0
    #: Seconds a trial waits for the searcher's decision before it continues.
    decision_timeout: Seconds = 30.0
    #: Maximum seconds of a run. A run with this limit may start on reserved hosts (backfill).
    max_runtime: Seconds | None = None
    #: Makes each trial a short run of a diagnosis.
    diagnosis: DiagnosisRun | None = None

    @classmethod
    def model_validate(cls, obj: Any) -> Self:  # type: ignore[override]
        """Return the validated configuration.

        :param obj: a mapping as the user wrote it. Without a template below it, ``Override`` means its value and
            ``RESET`` an absent field
        :raises ConfigError: with every problem of the document
        """
        if isinstance(obj, cls):
            return obj
        return cls._from(normalize(obj), "configuration")

    @classmethod
    def parse_yaml(cls, text: str | bytes, *, source: str = "configuration") -> Self:
        """Return the validated configuration from YAML text.

        :param text: at most 1 MiB
        :param source: name of the text in error messages
        :raises ConfigError: with every problem of the document
        """
        return cls._from(normalize(load_yaml(text, source=source), source=source), source)

    @classmethod
    def _from(cls, normalized: Normalized, source: str) -> Self:
        document = merge_config({}, normalized.document)
        result = cls.checked(document)
        if not isinstance(result.config, cls) or normalized.problems:
            found = [*normalized.problems, *result.problems]
            raise ConfigError([*found, *missing_length(document)] if result.problems else found, source=source)
        for message in normalized.warnings:
            warnings.warn(message, ForeignFieldWarning, stacklevel=4)
        return result.config

    @classmethod
    def checked(cls, document: ConfigDocument, *, partial: bool = False) -> DocumentCheck:
        """Return the configuration and the problems of a normalized document.

        When fields are missing or wrong, cross-field rules still run on the remaining fields.

        :param document: plain, without tags and None
        :param partial: whether required fields may be missing
        """
        written = document if partial else None
        try:
            return DocumentCheck(
                config=super().model_validate(document), rest=None, problems=[], scope=Scope(written=written)
            )
        except ValidationError as error:
            errors = error.errors(include_url=False)
        problems = problems_of(errors, cls, document, partial=partial)
        repair = Repair(document)
        rest = None
        for _ in range(REPAIRS):
            if rest is not None or not repair.apply(errors):
                break
            try:
                rest = super().model_validate(repair.document)
            except ValidationError as error:
                errors = error.errors(include_url=False)
                problems += problems_of(errors, cls, repair.document, partial=True)
        scope = Scope(repaired=frozenset(repair.repaired), written=written)
        return DocumentCheck(config=None, rest=rest, problems=list(dict.fromkeys(problems)), scope=scope)

    @property
    def trial_class(self) -> str | None:
        """The ``module:TrialClass`` of the entrypoint, or None for a command."""
        return self.entrypoint if isinstance(self.entrypoint, str) and is_trial_class(self.entrypoint) else None

    @property
    def command(self) -> tuple[str, ...]:
        """Argument vector that a host runs without a shell. Empty without an entrypoint and without inference."""
        if self.entrypoint is None:
            return INFERENCE if self.inference is not None else ()
        if self.trial_class:
            return (*HARNESS, self.trial_class)
        words = split_command(self.entrypoint)
        launcher = launcher_of(words)
        return tuple(words) if launcher is None else launcher.argv

    @property
    def is_per_host(self) -> bool:
        """Return whether a host starts one process, which starts the ranks of its slots."""
        return self.launch == "per_host" or (self.launch is None and launcher_of(self.command) is not None)

    @property
    def port_bounds(self) -> tuple[int, int] | None:
        """``port_range`` as numbers, both included."""
        if self.port_range is None:
            return None
        low, high = self.port_range.split("-")
        return int(low), int(high)


@dataclass(frozen=True, kw_only=True)
class DocumentCheck:
    """Problems and warnings that validation found in a document."""

    #: None when the document has a problem.
    config: ExperimentConfig | None
    #: The valid part of a document with errors, for cross-field rules. None when that part is invalid too.
    rest: ExperimentConfig | None
    problems: list[Problem]
    #: The fields of ``config`` or ``rest`` that come from the document.
    scope: Scope
