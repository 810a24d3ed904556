"""Rows and records in the output of Slurm's commands."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from airflow_provider_dtrain.core.safe_repr import printable_line
from airflow_provider_dtrain.core.slurm.cluster import ClusterConfig, Node, Partition, SlurmJob
from airflow_provider_dtrain.core.slurm.hostlist import expand
from airflow_provider_dtrain.core.slurm.job_states import WAITING, job_state
from airflow_provider_dtrain.core.slurm.quantities import seconds_of
from airflow_provider_dtrain.core.slurm.releases import version_of

#: Longest text of Slurm that a record keeps, in characters.
_TEXT_LIMIT: Final = 2000
_FIELD: Final = re.compile(r"(\w[\w/:]*)=(\S*)", re.ASCII)
_CANCELLED_BY: Final = re.compile(r"CANCELLED by (\d{1,10})", re.ASCII)
_GRES: Final = re.compile(
    r"([A-Za-z0-9_.-]+)(?::([A-Za-z][A-Za-z0-9_.-]*))?:(\d{1,9})([KMGT]?)(?:\([^)]*\))?", re.ASCII
)
_MARKS: Final = "*~#!%$@^+-"


class Table:
    """Format for ``squeue``, ``sinfo`` or ``sacct``, and the rows that it makes.

    A random text separates rows and fields, since names and comments of jobs may have any characters, newlines too.

    :param fields: formats of the fields, e.g. ``("%A", "%T")``
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._mark = secrets.token_hex(8)
        self._count = len(fields)
        self.format = f"{self._mark}:" + f"/{self._mark}/".join(fields)

    def rows(self, output: str) -> Iterator[list[str]]:
        """Yield the fields of each row, without blanks at their ends.

        :raises ValueError: a row has another number of fields
        """
        for text in output.split(f"{self._mark}:")[1:]:
            fields = [field.strip() for field in text.split(f"/{self._mark}/")]
            if len(fields) != self._count:
                raise ValueError(f"a row has {len(fields)} fields, expected {self._count}: {printable_line(text, 200)}")
            yield fields


#: Fields of ``squeue`` for :func:`queued_job`.
QUEUE_FIELDS: Final = ("%A", "%T", "%r", "%P", "%N", "%B", "%V", "%S", "%e", "%l", "%k", "%j")


def queued_job(row: Sequence[str]) -> SlurmJob:
    """Return the job of a row with :data:`QUEUE_FIELDS`.

    :raises ValueError: the row is malformed
    """
    job_id, state_text, reason, partition, nodes, batch_node, submitted, start, end, limit, comment, name = row
    state = job_state(state_text)
    is_waiting = state in WAITING
    return SlurmJob(
        job_id=int(job_id),
        name=name,
        state=state,
        reason=printable_line(reason, _TEXT_LIMIT),
        partition=partition,
        nodes=() if is_waiting else tuple(expand(nodes)),
        batch_node="" if batch_node in ("n/a", "(null)") else batch_node,
        submitted_s=epoch_s(submitted),
        expected_start_s=epoch_s(start) if is_waiting else None,
        started_s=None if is_waiting else epoch_s(start),
        ends_s=None if is_waiting else epoch_s(end),
        time_limit_s=seconds_of(limit),
        comment="" if comment == "(null)" else comment[:_TEXT_LIMIT],
    )


def shown_job(output: str) -> SlurmJob:
    """Return the job in the output of ``scontrol show job -o``.

    :raises ValueError: the output has no job
    """
    head, _, rest = output.partition(" UserId=")
    match = re.search(r"JobId=(\d{1,10})\b.*? JobName=(.*)\Z", head, re.DOTALL)
    if match is None or not rest:
        raise ValueError(f"no job in {printable_line(output, 200)!r}")
    # The text of a comment cannot stand for a field: the first occurrence counts, and comments come last.
    fields: dict[str, str] = {}
    for key, value in _FIELD.findall(rest):
        fields.setdefault(key, value)
    state = job_state(fields.get("JobState", ""))
    is_waiting = state in WAITING
    code, _, signal = fields.get("ExitCode", "").partition(":")
    start = epoch_s(fields.get("StartTime", ""))
    comment = re.search(r" Comment=(.*?)\s+StdErr=", rest, re.DOTALL)
    return SlurmJob(
        job_id=int(match[1]),
        name=match[2],
        state=state,
        reason=_no_null(fields.get("Reason", "")),
        partition=fields.get("Partition", ""),
        nodes=() if is_waiting else tuple(expand(fields.get("NodeList", ""))),
        batch_node=fields.get("BatchHost", ""),
        submitted_s=epoch_s(fields.get("SubmitTime", "")),
        eligible_s=epoch_s(fields.get("EligibleTime", "")),
        expected_start_s=start if is_waiting else None,
        started_s=None if is_waiting else start,
        ends_s=None if is_waiting else epoch_s(fields.get("EndTime", "")),
        time_limit_s=seconds_of(fields.get("TimeLimit", "")),
        exit_code=int(code) if code.isdecimal() else None,
        signal=int(signal) if signal.isdecimal() else 0,
        restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdecimal() else None,
        comment=comment[1][:_TEXT_LIMIT] if comment else "",
        failed_node=_no_null(fields.get("FailedNode", "")),
    )


#: Fields of ``sacct`` for :func:`accounted_job`.
ACCOUNT_FIELDS: Final = (
    ("JobIDRaw", "State", "ExitCode", "Reason", "Submit", "Eligible", "Start", "End", "NodeList", "Partition")
    + ("TimelimitRaw", "JobName")
)  # fmt: skip


def accounted_job(row: Sequence[str]) -> SlurmJob:
    """Return the job of a row with :data:`ACCOUNT_FIELDS`.

    :raises ValueError: the row is malformed
    """
    job_id, state, exit_code, reason, submitted, eligible, start, end, nodes, partition, limit, name = row
    by = _CANCELLED_BY.match(state)
    code, _, signal = exit_code.partition(":")
    return SlurmJob(
        job_id=int(job_id),
        name=name,
        state=job_state(state),
        reason=printable_line(reason, _TEXT_LIMIT),
        partition=partition,
        nodes=tuple(expand(nodes)),
        submitted_s=epoch_s(submitted),
        eligible_s=epoch_s(eligible),
        started_s=epoch_s(start),
        ends_s=epoch_s(end),
        time_limit_s=int(limit) * 60 if limit.isdecimal() else None,
        exit_code=int(code) if code.isdecimal() else None,
        signal=int(signal) if signal.isdecimal() else 0,
        cancelled_by=int(by[1]) if by else None,
    )


def cpu_share_of(output: str) -> float | None:
    """Return the used share of CPU time in the output of ``sacct -P -o TotalCPU,CPUTimeRAW``, None without it.

    The row of the job is the first one, before those of its steps. No time at all means that the accounting has not got
    the end of the job yet.
    """
    for line in output.splitlines():
        used, _, held = line.partition("|")
        used_s = seconds_of(used.partition(".")[0])
        if used_s and held.strip().isdecimal() and int(held) > 0:
            return min(1.0, used_s / int(held))
    return None


#: Fields of ``sinfo`` for :func:`nodes_of`.
NODE_FIELDS: Final = ("%R", "%T", "%c", "%m", "%G", "%N", "%E")


def nodes_of(row: Sequence[str]) -> tuple[str, list[Node]]:
    """Return the partition of a row with :data:`NODE_FIELDS` and its nodes.

    :raises ValueError: the row is malformed
    """
    partition, state, cpus, memory, gres, names, reason = row
    plain = state.rstrip(_MARKS)
    marks = state[len(plain) :]
    records = [
        Node(
            name=name,
            state=plain.upper(),
            cpus=int(cpus.rstrip("+")),
            memory_mib=int(memory.rstrip("+")),
            gres=gres_of(gres),
            reason="" if reason == "none" else printable_line(reason, _TEXT_LIMIT),
            is_silent="*" in marks,
        )
        for name in expand(names)
    ]
    return partition, records


def gres_of(text: str) -> tuple[tuple[str, str, int], ...]:
    """Return name, type and count of each generic resource in a text such as ``gpu:a100:4(S:0-1),nvme:1``."""
    scales = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
    parts = re.split(r",(?![^(]*\))", text)
    matches = (_GRES.fullmatch(part.strip()) for part in parts)
    return tuple((match[1], match[2] or "", int(match[3]) * scales[match[4]]) for match in matches if match)


def partitions_of(output: str, nodes: dict[str, list[Node]]) -> list[Partition]:
    """Return the partitions in the output of ``scontrol show partition -o``.

    :param nodes: name of the partition -> its nodes
    """
    found = []
    for line in output.splitlines():
        fields = dict(_FIELD.findall(line))
        if name := fields.get("PartitionName"):
            order = {node: index for index, node in enumerate(expand(_no_null(fields.get("Nodes", ""))))}
            found.append(
                Partition(
                    name=name,
                    is_default=fields.get("Default") == "YES",
                    state=fields.get("State", "UNKNOWN"),
                    max_time_s=seconds_of(fields.get("MaxTime", "")),
                    default_time_s=seconds_of(fields.get("DefaultTime", "")),
                    grace_time_s=int(fields["GraceTime"]) if fields.get("GraceTime", "").isdecimal() else None,
                    preempt_mode=fields.get("PreemptMode", ""),
                    nodes=tuple(sorted(nodes.get(name, ()), key=lambda node: order.get(node.name, len(order)))),
                )
            )
    return found


def config_of(output: str) -> ClusterConfig:
    """Return the configuration in the output of ``scontrol show config``.

    :raises ValueError: the output has no name of a cluster
    """
    pairs = (line.partition("=") for line in output.splitlines())
    values = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    if not values.get("ClusterName"):
        raise ValueError(f"no configuration in {printable_line(output, 200)!r}")
    storage = values.get("AccountingStorageType", "")
    return ClusterConfig(
        cluster=values["ClusterName"],
        version=version_of(values.get("SLURM_VERSION", "")),
        proctrack=values.get("ProctrackType", ""),
        select=values.get("SelectType", ""),
        preempt_mode=_set(values.get("PreemptMode", "")),
        preempt_type=values.get("PreemptType", ""),
        kill_wait_s=_first_number(values.get("KillWait", "")) or 0,
        min_job_age_s=_first_number(values.get("MinJobAge", "")) or 0,
        priority_flags=_set(values.get("PriorityFlags", "")),
        has_accounting=storage not in ("", "(null)", "accounting_storage/none"),
        enforces=_set(values.get("AccountingStorageEnforce", "")),
        max_job_count=_first_number(values.get("MaxJobCount", "")),
        max_array_size=_first_number(values.get("MaxArraySize", "")),
        private_data=_set(values.get("PrivateData", "")),
        next_job_id=_first_number(values.get("NEXT_JOB_ID", "")),
    )


def addresses_of(output: str) -> dict[str, str]:
    """Return name -> address of each node in the output of ``scontrol show node -o``."""
    found = {}
    for line in output.splitlines():
        fields: dict[str, str] = {}
        for key, value in _FIELD.findall(line):
            fields.setdefault(key, value)
        if name := fields.get("NodeName"):
            found[name] = fields.get("NodeAddr") or name
    return found


def epoch_s(text: str) -> float | None:
    """Return the seconds since 1970 of a time that Slurm printed, None without one.

    A time without a zone is none: the zone of the login node is not known.
    """
    text = text.strip()
    if text.isdecimal():
        return float(text) if 0 < int(text) < 2**40 else None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def _no_null(text: str) -> str:
    return "" if text == "(null)" else text


def _set(text: str) -> frozenset[str]:
    parts = (part.strip().upper() for part in re.split(r"[,+]", text))
    return frozenset(part for part in parts if part not in ("", "NONE", "(NULL)", "OFF"))


def _first_number(text: str) -> int | None:
    match = re.match(r"\d{1,12}", text)
    return int(match[0]) if match else None
