"""Reasons for which Slurm lets a job wait, each as a sentence.

Source: ``squeue(1)`` and the page "Job reason codes" of Slurm, with the codes of release 22.05 and newer ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from airflow_provider_dtrain.core.safe_repr import printable_line


class Outlook(StrEnum):
    """Expected end of a reason."""

    #: It ends without help.
    WAIT = "wait"
    #: It ends when a user or an administrator acts.
    BY_HAND = "by_hand"
    #: It cannot change while the job and the cluster stay as they are.
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class SlurmReason:
    """Reason for which a job waits."""

    #: Slurm's code, e.g. ``Resources``.
    code: str
    sentence: str
    outlook: Outlook
    #: Nodes that the reason names, as Slurm's list of hosts; "" if it names none.
    nodes: str = ""


_W, _H, _N = Outlook.WAIT, Outlook.BY_HAND, Outlook.NEVER
_REASONS: Final[dict[str, tuple[Outlook, str]]] = {
    "None": (_W, "Slurm has not considered the job yet."),
    "WaitingForScheduling": (_W, "Slurm has not considered the job yet."),
    "SchedDefer": (_W, "Slurm considers new jobs later, because it is set to defer them."),
    "Priority": (_W, "Jobs of higher priority wait for the same partition."),
    "Resources": (_W, "The nodes are in use. The job is among the next that start."),
    "Dependency": (_W, "The job waits for another job of the same trial to end."),
    "DependencyNeverSatisfied": (_N, "The job depends on a job whose end can never satisfy the dependency."),
    "BeginTime": (_W, "The earliest start time of the job has not come yet."),
    "Licenses": (_W, "The licenses that the job requests are in use."),
    "Reservation": (_W, "The job waits for its reservation to begin."),
    "ReservationDeleted": (_H, "The reservation of the job was deleted, and the job is held."),
    "ReqNodeNotAvail": (_H, "Nodes that the job requires are not available: down, drained, reserved or in use."),
    "NodeDown": (_H, "A node that the job requires is down."),
    "FrontEndDown": (_H, "No front-end node is available."),
    "Cleaning": (_W, "Slurm still cleans up after an earlier run of the job."),
    "Prolog": (_W, "The prolog of the controller still runs for the job."),
    "JobHeldUser": (_H, "The job is held by its user. Release it with: scontrol release"),
    "JobHeldAdmin": (_H, "The job is held by an administrator, who can release it with: scontrol release"),
    "JobHoldMaxRequeue": (_H, "The job was put back into the queue too often and is held."),
    "RequeueExit": (_W, "The job was put back into the queue because of its exit code."),
    "RequeueExitHold": (_H, "The job was put back into the queue because of its exit code and is held."),
    "JobLaunchFailure": (_H, "The job could not be started on its nodes, and is held or put back."),
    "launch failed requeued held": (_H, "The job could not be started on its nodes, was put back and is held."),
    "SystemFailure": (_H, "Slurm, a file system or the network failed."),
    "NonZeroExitCode": (_W, "The job ended with an exit code other than 0."),
    "TimeLimit": (_W, "The job used up its time limit."),
    "OutOfMemory": (_W, "The job used more memory than it has."),
    "InactiveLimit": (_W, "The job reached the InactiveLimit of the cluster."),
    "DeadLine": (_N, "The job cannot end before its deadline."),
    "PartitionDown": (_H, "The partition is down: it takes jobs, but starts none."),
    "PartitionInactive": (_H, "The partition is inactive: it starts no jobs."),
    "PartitionNodeLimit": (
        _H,
        "The partition does not give out so many nodes, or nodes that the job needs are down or drained.",
    ),
    "PartitionTimeLimit": (
        _N,
        "The time limit of the job is above that of the partition. Set --time-limit of the pool.",
    ),
    "PartitionConfig": (_H, "The partition cannot serve the job as it is configured now."),
    "AccountNotAllowed": (_N, "The account may not use the partition. Set --account of the pool."),
    "QOSNotAllowed": (_N, "The QOS may not be used in the partition. Set --qos of the pool."),
    "InvalidAccount": (_N, "The account is not valid. Set --account of the pool."),
    "InvalidQOS": (_N, "The QOS is not valid. Set --qos of the pool."),
    "QOSUsageThreshold": (_W, "The account has used more than the QOS allows. Its usage decays with time."),
    "BadConstraints": (_N, "No set of nodes satisfies the constraints of the job."),
    "AccountingPolicy": (_W, "A limit of the accounting does not let the job start."),
    "AssociationJobLimit": (_W, "The account has as many jobs as it may have."),
    "AssociationResourceLimit": (_W, "The account has reached a limit of resources."),
    "AssociationTimeLimit": (_W, "The account has used up its time."),
    "QOSJobLimit": (_W, "The QOS has as many jobs as it may have."),
    "QOSResourceLimit": (_W, "The QOS has reached a limit of resources."),
    "QOSTimeLimit": (_W, "The QOS has used up its time."),
    "JobArrayTaskLimit": (_W, "As many tasks of the job array run as may run at a time."),
    "BurstBufferResources": (_W, "The burst buffer has too little free space."),
    "BurstBufferStageIn": (_W, "Files are copied into the burst buffer."),
    "BurstBufferOperation": (_H, "An operation of the burst buffer failed."),
    "BlockMaxError": (_H, "A block of the machine has too many errors."),
    "BlockFreeAction": (_W, "A block of the machine is being freed."),
    "PowerNotAvail": (_W, "The cluster has too little power for the job at this time."),
    "PowerReserved": (_W, "The power that the job needs is reserved."),
    "FedJobLock": (_W, "Clusters of the federation agree on which of them starts the job."),
    "MaxMemPerLimit": (_N, "The job requests more memory for a CPU or a node than MaxMemPerCPU or MaxMemPerNode."),
    "MaxPowerPerNode": (_N, "The job requests more power for a node than is allowed."),
    "ResvReqs": (_H, "The job cannot run in its reservation."),
    "PartitionMaxNodes": (_N, "The job has more nodes than the partition gives to one job."),
    "PartitionMinNodes": (_N, "The job has fewer nodes than the partition requires."),
    "ReservationMaxTime": (_N, "The job lasts longer than its reservation."),
}
_DOWN_TEXT: Final = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
#: Limits of accounts (associations) and of quality of service: owner, scope, resource, unit, per whom.
_LIMIT: Final = re.compile(
    r"(?P<owner>Assoc|QOS)?(?P<scope>Grp|Max|Min)(?P<resource>[A-Za-z]+?)(?P<unit>RunMinutes|Minutes)?"
    r"(?P<per>Per(?:Job|Node|User|Account))?(?:Limit|NotSatisfied)?",
    re.ASCII,
)
_OWNERS: Final = {"Assoc": "account", "QOS": "QOS", None: "QOS"}
_RESOURCES: Final = {
    "BB": "burst buffer", "Billing": "billing units", "CPU": "CPUs", "CPUs": "CPUs", "Cpu": "CPUs",
    "Energy": "energy", "GRES": "generic resources such as GPUs", "Jobs": "running jobs", "Job": "running jobs",
    "License": "licenses", "Mem": "memory", "Memory": "memory", "Node": "nodes", "SubmitJobs": "submitted jobs",
    "SubmitJob": "submitted jobs", "Unknown": "a resource", "Wall": "time", "WallDuration": "time",
}  # fmt: skip
_PERS: Final = {"PerJob": "a job", "PerNode": "a node", "PerUser": "one user", "PerAccount": "one account"}


def slurm_reason(text: str) -> SlurmReason:
    """Return a pending reason, whose sentence is Slurm's own text if the reason is not known.

    :param text: of ``squeue``'s field ``%r``, e.g. ``ReqNodeNotAvail, UnavailableNodes:n[1-2]``
    """
    text = printable_line(text, 500).strip("() ")
    plain = text.replace("_", " ")
    if plain.startswith(_DOWN_TEXT[:40]):
        return SlurmReason(
            code="NodesUnavailable",
            sentence="Nodes that the job needs are down, drained or reserved for jobs of more urgent partitions.",
            outlook=Outlook.WAIT,
        )
    code = text.partition(",")[0].partition(":")[0].strip()
    nodes = _nodes(text)
    known = _REASONS.get(code) or _REASONS.get(plain.partition(",")[0]) or _limit(code)
    if known is None:
        return SlurmReason(code=code, sentence=text or "Slurm gives no reason.", outlook=Outlook.WAIT, nodes=nodes)
    outlook, sentence = known
    if nodes:
        sentence += f" Not available: {nodes}."
    return SlurmReason(code=code, sentence=f"{sentence} ({code})", outlook=outlook, nodes=nodes)


def _nodes(text: str) -> str:
    """Return the nodes that a reason names."""
    match = re.search(r"(?:UnavailableNodes|Unavailable nodes|Reserved for maintenance):\s*(\S+)", text)
    return match[1].strip(",()") if match else ""


def _limit(code: str) -> tuple[Outlook, str] | None:
    match = _LIMIT.fullmatch(code)
    resource = _RESOURCES.get(match["resource"]) if match else None
    if match is None or resource is None or (match["owner"] is None and match["per"] is None):
        return None
    owner, per = _OWNERS[match["owner"]], match["per"]
    unit = {"Minutes": " over time", "RunMinutes": " of running jobs until their ends", None: ""}[match["unit"]]
    if match["scope"] == "Min":
        return Outlook.NEVER, f"The job requests less than the minimum of {resource} that the {owner} has for a job."
    if match["scope"] == "Grp":
        return Outlook.WAIT, f"All jobs of the {owner} together have reached its limit of {resource}{unit}."
    if per in ("PerJob", "PerNode"):
        return Outlook.NEVER, f"The job exceeds the limit of {resource}{unit} that the {owner} has for {_PERS[per]}."
    whose = f" for {_PERS[per]}" if per else ""
    return Outlook.WAIT, f"The limit of {resource}{unit} that the {owner} has{whose} is reached."
