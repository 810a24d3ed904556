"""Options of a pool whose slots belong to Slurm."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from airflow_provider_dtrain.core.control_characters import is_one_line
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.core.slurm.quantities import mebibytes_of, seconds_of
from airflow_provider_dtrain.core.slurm.user_options import option_problem
from airflow_provider_dtrain.errors import ConfigError, Problem

SlotKind = Literal["gpu", "cpu"]
#: Connection of a pool whose login node is this machine.
LOCAL: Final = "local"
#: Generated options of ``sbatch`` that a pool can leave out.
SBATCH_OPTIONS: Final = frozenset(
    ["parsable", "no-requeue", "dependency", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node"]
    + ["gres", "mem", "mem-per-cpu", "time", "time-min", "exclude", "signal", "output", "comment"]
    + ["partition", "account", "qos", "clusters"]
)
#: Generated options of ``srun`` that a pool can leave out, with a prefix: ``srun:mpi``.
SRUN_OPTIONS: Final = frozenset(
    ["nodes", "ntasks", "ntasks-per-node", "kill-on-bad-exit", "wait", "cpus-per-task", "cpu-bind", "mem", "mpi"]
    + ["input", "export", "job-name"]
)
#: Maximum bytes of the setup lines: the controller stores the script of each job, 4 MiB at most.
MAX_SETUP_BYTES: Final = 256 * 1024
#: Options whose argument of ``pools set`` has another name.
_FLAGS: Final = {
    "conn_id": "conn", "sbatch_options": "sbatch-option", "without_options": "without-option", "output": "job-output",
}  # fmt: skip
_MAX_COUNT: Final = 4096
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,126}", re.ASCII)
_PARTITIONS: Final = re.compile(rf"{_WORD.pattern}(?:,{_WORD.pattern}){{0,15}}", re.ASCII)
_PORTS: Final = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)
#: No shell reads it, so "~" would be a name.
_PYTHON: Final = re.compile(r"/?[A-Za-z0-9_.+@/-]{1,200}", re.ASCII)
_OUTPUT: Final = re.compile(r"/(?:[A-Za-z0-9_.+@/-]|%[jx%]){1,500}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Options of one pool. :func:`slurm_options` checks them."""

    #: SSH connection to a login node; None or ``local``: ``sbatch`` is on this machine.
    conn_id: str | None = None
    #: Partition, or several with commas, of which Slurm takes one; None: the default of the cluster.
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    #: Cluster behind the login node (``--clusters``); None: its own.
    clusters: str | None = None
    #: A slot is a GPU, or ``cpus_per_slot`` CPUs.
    slots: SlotKind = "gpu"
    #: Generic resource of a slot; None: GPUs by ``--gpus-per-node``.
    gres_name: str | None = None
    #: Type of the generic resource or GPU, e.g. ``a100``; None: any.
    gres_type: str | None = None
    #: CPUs of a slot; None: 1 for slots of CPUs, the default of the cluster for GPUs.
    cpus_per_slot: int | None = None
    #: Memory of a slot, e.g. ``32G``; None: the default of the cluster.
    memory_per_slot: str | None = None
    memory_per_cpu: str | None = None
    #: Slots of a node; None: as the nodes of the partition have them.
    slots_per_node: int | None = None
    #: Time limit of a job, e.g. ``24h`` or ``1-00:00:00``; None: of the partition.
    time_limit: str | None = None
    #: Time down to which Slurm may shorten a job so that it starts sooner; None: it may not.
    time_min: str | None = None
    #: Lines that a login shell runs before the supervisor starts.
    setup: str = ""
    #: Further options of ``sbatch``, each in one text.
    sbatch_options: tuple[str, ...] = ()
    #: Generated options that are left out: names of ``sbatch``, or of ``srun`` with the prefix ``srun:``.
    without_options: frozenset[str] = frozenset()
    #: Maximum number of jobs that are pending or running; None: no limit of the pool.
    max_jobs: int | None = None
    #: Ports on which supervisors listen, e.g. ``40000-40100``; None: any free port.
    port_range: str | None = None
    #: Python that starts the supervisor, after the setup lines.
    python: str = "python3"
    #: Absolute path of a file on compute nodes for the output of the job, with ``%j`` for its number; None: none.
    output: str | None = None

    @property
    def is_local(self) -> bool:
        """``sbatch`` is on this machine."""
        return self.conn_id in (None, LOCAL)

    @property
    def time_limit_s(self) -> int | None:
        """Time limit of a job in seconds."""
        return None if self.time_limit is None else seconds_of(self.time_limit)

    @property
    def time_min_s(self) -> int | None:
        """Shortest time of a job in seconds."""
        return None if self.time_min is None else seconds_of(self.time_min)

    @property
    def ports(self) -> tuple[int, int] | None:
        """First and last port on which supervisors listen."""
        low, _, high = (self.port_range or "").partition("-")
        return (int(low), int(high)) if high else None

    def has(self, option: str) -> bool:
        """Return whether a generated option is used: a name of ``sbatch``, or ``srun:NAME``."""
        return option not in self.without_options

    def to_json(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, for :func:`slurm_options`."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = sorted(value) if isinstance(value, frozenset) else value
                found[field.name] = list(value) if isinstance(value, tuple) else found[field.name]
        return found


def flag(name: str) -> str:
    """Return the argument of ``pools set`` that sets an option, which messages name."""
    return f"--{_FLAGS.get(name, name.replace('_', '-'))}"


def slurm_options(document: Mapping[str, Any], *, source: str = "Slurm options") -> SlurmOptions:
    """Return the options in a document.

    :param document: names of :class:`SlurmOptions` -> values; lists for ``sbatch_options`` and ``without_options``
    :param source: name of the document in messages, e.g. ``pool 'hpc'``
    :raises ConfigError: a field is unknown, or a value cannot be used; the error has all problems
    """
    known = {field.name: field for field in fields(SlurmOptions)}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            problems.append(Problem(path=str(name), message=f"unknown option; known are {', '.join(map(flag, known))}"))
        elif value is not None:
            found = list(_field_problems(name, value))
            problems += found
            if not found:
                values[name] = _CONVERTED.get(name, lambda one: one)(value)
    problems += _together(values)
    if problems:
        raise ConfigError(problems, source=source)
    return SlurmOptions(**values)


def _field_problems(name: str, value: Any) -> list[Problem]:
    if name in ("sbatch_options", "without_options"):
        if not isinstance(value, (list, tuple, set, frozenset)):
            return [Problem(path=flag(name), message=f"{shown(value)} is not a list of options")]
        check = option_problem if name == "sbatch_options" else _without_problem
        ordered = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [Problem(path=flag(name), message=message) for one in ordered if (message := check(one))]
    message = _CHECKS[name](value)
    return [Problem(path=flag(name), message=message)] if message else []


def _together(values: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of values that cannot be used together."""
    found: list[Problem] = []
    if "memory_per_slot" in values and "memory_per_cpu" in values:
        found.append(Problem(path=flag("memory_per_cpu"), message="--memory-per-slot is set as well; set one of them"))
    if values.get("slots") == "cpu":
        found += [
            Problem(path=flag(name), message="slots of CPUs have no generic resource; remove it, or set --slots gpu")
            for name in ("gres_name", "gres_type")
            if name in values
        ]
    limit, shortest = seconds_of(values.get("time_limit", "")), seconds_of(values.get("time_min", ""))
    if limit is not None and shortest is not None and shortest > limit:
        found.append(Problem(path=flag("time_min"), message=f"{values['time_min']!r} is above --time-limit"))
    for option in values.get("sbatch_options", ()):
        if message := option_problem(option, gres_name=values.get("gres_name")):
            found.append(Problem(path=flag("sbatch_options"), message=message))
    return found


def _without_problem(value: Any) -> str | None:
    if isinstance(value, str):
        kind, colon, name = value.partition(":")
        if value in SBATCH_OPTIONS or (colon and kind == "srun" and name in SRUN_OPTIONS):
            return None
        if value == "job-name":
            return "job-name cannot be left out: the name finds the job of an attempt"
    known = [*sorted(SBATCH_OPTIONS), *(f"srun:{name}" for name in sorted(SRUN_OPTIONS))]
    return f"{shown(value)} is not a generated option; these are {', '.join(known)}"


def _word(value: Any) -> str | None:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return None
    return f"{shown(value)} is not a name: letters, digits, '_', '.', '@', '+', '-' are accepted, no '-' first"


def _matches(pattern: re.Pattern[str], expected: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and pattern.fullmatch(value) else f"{shown(value)} is not {expected}"

    return check


def _count(value: Any) -> str | None:
    is_count = type(value) is int and 1 <= value <= _MAX_COUNT
    return None if is_count else f"{shown(value)} is not an integer from 1 to {_MAX_COUNT}"


def _jobs(value: Any) -> str | None:
    return None if type(value) is int and 1 <= value <= 10**6 else f"{shown(value)} is not an integer from 1 to 1000000"


def _memory(value: Any) -> str | None:
    if isinstance(value, str) and mebibytes_of(value) is not None:
        return None
    return f"{shown(value)} is not a size above 0 such as '32G' or '4000M'"


def _time(value: Any) -> str | None:
    seconds = seconds_of(value) if isinstance(value, str) else None
    if seconds is not None and 60 <= seconds <= 366 * 86400:
        return None
    return f"{shown(value)} is not a time from 1 minute to 366 days such as '24h' or '1-00:00:00'"


def _setup(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{shown(value)} is not a text"
    if "\x00" in value or "\r" in value:
        return "the text has a NUL character or a carriage return; lines end with a newline only"
    if not value.isprintable() and not all(is_one_line(line.replace("\t", " ")) for line in value.split("\n")):
        return "the text has a control character"
    if (size := len(value.encode("utf-8", "surrogatepass"))) > MAX_SETUP_BYTES:
        return f"{size} bytes; at most {MAX_SETUP_BYTES} are accepted"
    for number, line in enumerate(value.split("\n"), 1):
        if line.lstrip().startswith(("#SBATCH", "#PBS", "#BSUB")):
            return f"line {number} has an option of sbatch, which has no effect here; add it by --sbatch-option"
    return None


def _ports(value: Any) -> str | None:
    match = _PORTS.fullmatch(value) if isinstance(value, str) else None
    if match and 1024 <= int(match[1]) <= int(match[2]) <= 65535:
        return None
    return f"{shown(value)} is not a range such as '40000-40100' within 1024-65535"


def _slot_kind(value: Any) -> str | None:
    return None if value in get_args(SlotKind) else f"{shown(value)} is not one of {', '.join(get_args(SlotKind))}"


def _cluster(value: Any) -> str | None:
    if isinstance(value, str) and "," in value:
        return f"{shown(value)} names several clusters; make one pool for each"
    return _word(value)


_CHECKS: Final[dict[str, Callable[[Any], str | None]]] = {
    "conn_id": _word,
    "partition": _matches(_PARTITIONS, "the name of a partition, or up to 16 names with commas"),
    "account": _word,
    "qos": _word,
    "clusters": _cluster,
    "slots": _slot_kind,
    "gres_name": _word,
    "gres_type": _word,
    "cpus_per_slot": _count,
    "memory_per_slot": _memory,
    "memory_per_cpu": _memory,
    "slots_per_node": _count,
    "time_limit": _time,
    "time_min": _time,
    "setup": _setup,
    "max_jobs": _jobs,
    "port_range": _ports,
    "python": _matches(_PYTHON, "the name or the absolute path of a program"),
    "output": _matches(_OUTPUT, "an absolute path of letters, digits and '_.+@/-', with %j for the number of the job"),
}
_CONVERTED: Final[dict[str, Callable[[Any], Any]]] = {"sbatch_options": tuple, "without_options": frozenset}
