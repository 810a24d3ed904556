"""Answers that single commands read, besides the records that both programs print. Most commands need none of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from airflow_provider_dtrain.resources.bounds import Between, Count, Id


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """An answer of which nothing is read."""


@dataclass(frozen=True, kw_only=True)
class DagRun:
    """A DAG run, as Airflow's own API has it."""

    state: str


@dataclass(frozen=True, kw_only=True)
class PlacedProblem:
    """A problem with its line in the configuration."""

    path: str
    line: Annotated[int, Between(0, 2**31)]
    message: str
    severity: Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class ConfigLine:
    """A line of an effective configuration, with the path of its value."""

    text: str
    path: str


@dataclass(frozen=True, kw_only=True)
class ConfigSummary:
    """The experiment that a configuration describes."""

    pool: str


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Problems of a configuration, and without errors its effective values."""

    problems: list[PlacedProblem]
    effective: list[ConfigLine]
    summary: ConfigSummary | None


@dataclass(frozen=True, kw_only=True)
class CheckedTemplate:
    """Problems of a template."""

    problems: list[PlacedProblem]


@dataclass(frozen=True, kw_only=True)
class StoredCode:
    """Code that the server has."""

    digest: str


@dataclass(frozen=True, kw_only=True)
class Started:
    """An experiment that the server has accepted."""

    dag_id: str
    run_id: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ForkSource:
    """The configuration of an experiment as a start for another one."""

    yaml: str
    payload_digest: str | None
    code_removed: bool
    template: str | None


@dataclass(frozen=True, kw_only=True)
class ReportedMetric:
    """One metric of a trial over its reports."""

    group: str
    name: str
    y: list[float | None]
    at_s: list[float]
    batches: list[int]


@dataclass(frozen=True, kw_only=True)
class ReportedMetrics:
    """Metrics of a trial."""

    series: list[ReportedMetric]


@dataclass(frozen=True, kw_only=True)
class ScriptOutput:
    """A file that a plain script wrote."""

    path: str
    size_bytes: Count
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ScriptOutputs:
    """Copies of a trial's outputs on the server."""

    rows: list[ScriptOutput]
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class ServerOperation:
    """Work on hosts, with its state. The form of the result depends on its kind."""

    operation_id: Id
    state: Literal["waiting", "running", "done", "failed"]
    through: Literal["follower", "dag"]
    dag_id: str | None
    dag_run: str | None
    size_bytes: Count
    result: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class FetchedFile:
    """A file on a host."""

    path: str
    size_bytes: Count
    #: Unix time; the last one is in the year 9999.
    at: Annotated[float, Between(0, 253402300799)]


@dataclass(frozen=True, kw_only=True)
class FetchedOutputs:
    """Files of a trial on its host, and what to know about them."""

    files: list[FetchedFile]
    words: list[str]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Result of a probe of a host."""

    host: str
    state: str
    python: str | None
    torch: str | None
    clock_offset_s: float | None
    clock_uncertainty_s: float | None
    other_stores: list[str]
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Results of probes."""

    rows: list[Probe]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a host."""

    check: str
    ok: bool
    message: str


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Checks of all hosts."""

    rows: list[Check]
