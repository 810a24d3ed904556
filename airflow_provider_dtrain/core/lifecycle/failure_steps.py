"""Next steps after a failure: sentences, commands, and the pages that help. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind

#: Page, or part of the trial's page, that helps.
StepPage = Literal["log", "training", "config", "compare", "cluster", "queue", "task_log", "files", "shards"]


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """Something to try."""

    text: str
    #: Command that does or shows it; None: there is none.
    command: str | None = None
    #: None: no page helps.
    page: StepPage | None = None
    #: Host that the page should show.
    host: str | None = None


#: Kind of a cause, or class of an error -> text, command, page. ``{host}``, ``{trial}`` and ``{pool}`` are filled in; a
#: step whose values are not known is left out.
_Row = tuple[str, str | None, StepPage | None]
_PROBE: Final[_Row] = ("Probe host '{host}'.", "airflow dtrain hosts probe {host}", "cluster")
_MEMORY: Final[_Row] = ("Look at the memory of hosts and devices before the end.", None, "training")
_CHECK: Final[_Row] = ("Measure the network between the hosts.", "airflow dtrain hosts check", "cluster")
_ENVIRONMENT: Final[_Row] = ("Check the environment in the configuration.", None, "config")
_HANGS: Final[_Row] = (
    "Start it again, and print the stacks of all ranks while it hangs.",
    "airflow dtrain trials stack {trial}",
    None,
)
_FREE: Final[_Row] = (
    "See which hosts the pool has, and how many slots.",
    "airflow dtrain pools describe {pool}",
    "cluster",
)

_STEPS: Final[Mapping[str, tuple[_Row, ...]]] = {
    CauseKind.OUT_OF_MEMORY: (_MEMORY,),
    CauseKind.HOST_MEMORY: (_MEMORY,),
    CauseKind.DEVICE_MEMORY: (_MEMORY,),
    CauseKind.DEVICE_BROKEN: (
        ("Disable host '{host}' until its device is tested.", "airflow dtrain hosts disable {host}", "cluster"),
    ),
    CauseKind.DISK_FULL: (_PROBE,),
    CauseKind.SHARED_MEMORY: (_PROBE,),
    CauseKind.MISSING_MODULE: (_ENVIRONMENT,),
    CauseKind.RENDEZVOUS: (_CHECK,),
    CauseKind.CONNECTION: (_CHECK,),
    CauseKind.NOT_FINITE: (("Look at the last values of the metrics before the end.", None, "training"),),
    CauseKind.MISSING: (_HANGS,),
    "hang": (_HANGS,),
    "mismatch": (_HANGS,),
    "EnvironmentBuildError": (
        (
            "Build the environment on one host, and read its output.",
            "airflow dtrain environments build CONFIG",
            "config",
        ),
    ),
    "EnvironmentTimeoutError": (("Raise environment.build_timeout.", None, "config"),),
    "EnvironmentMissingError": (_ENVIRONMENT, _PROBE),
    "ImageError": (("Check the name of the image in the configuration.", None, "config"), _PROBE),
    "ConfigError": (("Correct the configuration.", "airflow dtrain configs validate CONFIG", "config"),),
    "InvalidHPError": (("Correct the hyperparameters, or the range from which they are drawn.", None, "config"),),
    "UnplaceableError": (
        _FREE,
        ("Request fewer slots, or name another pool, in resources.", "airflow dtrain explain CONFIG", "config"),
        ("Let trials wait for hosts that come later: on_unplaceable: wait.", None, "config"),
    ),
    "NetworkPathError": (_CHECK,),
    "MaxRuntimeError": (("Raise max_runtime, or train for less.", None, "config"),),
    "MetricMissingError": (("Report the metric that the searcher needs, or name another one.", None, "config"),),
    "LogPolicyError": (("See the log policy that ended the trial.", None, "config"),),
    "BadShardError": (
        ("See which shards failed, and with which errors.", None, "shards"),
        ("Mend the input or the processor, and run it again: only the missing shards are computed.", None, None),
        ("Or set bad shards aside: on_bad_shard: skip in the section inference.", None, "config"),
    ),
    "SlotsTakenError": (("See the jobs of its pool.", None, "queue"),),
}


def next_steps(
    failure: Mapping[str, Any], *, trial_id: int, pool: str, has_ranks: bool, baseline: int | None
) -> list[NextStep]:
    """Return what to try after a failure, the most specific steps first.

    :param failure: as stored
    :param has_ranks: ranks were started, so they have logs
    :param baseline: the last good run, if something has changed since; None: there is none
    """
    values = {"host": failure.get("host"), "trial": trial_id, "pool": pool}
    rows = [row for key in ("cause_kind", "error") for row in _STEPS.get(str(failure.get(key)), ())]
    if failure.get("kind") == "infra" and _PROBE not in rows:
        rows.append(_PROBE)
    found = [*_advice(failure), *(step for row in rows for step in _filled(row, values))]
    if baseline is not None:
        command = f"airflow dtrain trials diff {baseline} {trial_id}"
        found.append(
            NextStep(text=f"Compare it with trial {baseline}, the last good run.", command=command, page="compare")
        )
    if has_ranks:
        command = f"airflow dtrain trials logs {trial_id}"
        found.append(NextStep(text="Read the logs of all ranks.", command=command, page="log"))
    found.append(NextStep(text="Read the task log in Airflow.", page="task_log"))
    return found


def advice_of(failure: Mapping[str, Any]) -> str:
    """Return the next step for the kind of a failure's cause, empty if none is known."""
    kind = failure.get("cause_kind")
    return CauseKind(kind).advice if kind in set(CauseKind) else ""


def _advice(failure: Mapping[str, Any]) -> Iterator[NextStep]:
    if advice := advice_of(failure):
        yield NextStep(text=advice)


def _filled(row: _Row, values: Mapping[str, Any]) -> Iterator[NextStep]:
    text, command, page = row
    needed = [name for name in values if f"{{{name}}}" in f"{text}{command}"]
    if all(values[name] is not None for name in needed):
        filled = None if command is None else command.format(**values)
        host = str(values["host"]) if "host" in needed else None
        yield NextStep(text=text.format(**values), command=filled, page=page, host=host)
