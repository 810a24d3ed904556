"""Description of a cluster for one pool: its facts, and the findings of ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from airflow_provider_dtrain.core.scheduler_facts import Finding, NodeSize, PartitionFacts, SchedulerFacts
from airflow_provider_dtrain.core.slurm.cluster import (
    ClusterConfig,
    NoTimeLimit,
    Partition,
    partition_of,
    time_limit_of,
)
from airflow_provider_dtrain.core.slurm.options import SlurmOptions
from airflow_provider_dtrain.core.slurm.quantities import slurm_time
from airflow_provider_dtrain.core.slurm.releases import is_usable, version_text, warnings
from airflow_provider_dtrain.core.slurm.user_options import excludes_nodes

#: Polls of jobs are at most this far apart. A job that the controller forgets sooner ends without a known reason.
_SEEN_S = 60


def no_partition(options: SlurmOptions) -> str:
    """Return that the cluster lacks the partition of a pool, as a sentence."""
    name = options.partition
    return f"The cluster has no {f'partition {name!r}' if name else 'default partition'}; sinfo lists its partitions."


def facts_of(
    options: SlurmOptions, config: ClusterConfig, partitions: Sequence[Partition], at: datetime
) -> SchedulerFacts:
    """Return the facts of a cluster for a pool.

    :param at: time at which they were requested
    """
    used = partition_of(options, partitions)
    limit = time_limit_of(options, used)
    problem = no_partition(options) if used is None else limit.reason if isinstance(limit, NoTimeLimit) else ""
    return SchedulerFacts(
        at=at,
        program="Slurm" if config.version is None else f"Slurm {version_text(config.version)}",
        cluster=config.cluster,
        partitions=[_partition(options, one, is_used=one is used) for one in partitions],
        time_limit_s=None if problem or isinstance(limit, NoTimeLimit) else limit,
        max_jobs=options.max_jobs,
        excluding=[option for option in options.sbatch_options if excludes_nodes(option)],
        problem=problem,
    )


def _partition(options: SlurmOptions, partition: Partition, *, is_used: bool) -> PartitionFacts:
    return PartitionFacts(
        name=partition.name,
        is_used=is_used,
        state=partition.state,
        nodes=len(partition.nodes),
        usable_nodes=sum(node.is_usable for node in partition.nodes),
        sizes=_sizes(partition.sizes(options)),
        usable_sizes=_sizes(partition.sizes(options, are_usable=True)),
        default_time_s=partition.default_time_s,
        max_time_s=partition.max_time_s,
    )


def _sizes(counts: Mapping[int, int]) -> list[NodeSize]:
    return [NodeSize(slots=slots, nodes=count) for slots, count in counts.items()]


def findings_of(
    options: SlurmOptions,
    *,
    programs: Mapping[str, str | None],
    config: ClusterConfig,
    partitions: Sequence[Partition],
) -> Iterator[Finding]:
    """Yield what decides whether jobs of a pool run, and what they may lose.

    :param programs: name -> path on the login node, None for a missing one
    """
    yield _programs(programs, config)
    yield _version(config)
    used = partition_of(options, partitions)
    yield from _of_partition(options, used)
    yield _preemption(config, used)
    yield _containment(config)
    yield _priority(config)
    yield _limits(options, config)
    yield _memory_of_ends(config)
    where = "after the pool's setup lines" if options.setup else "and the pool has no setup lines"
    message = f"jobs start '{options.python}' on their nodes, {where}. The Python of the login node does not matter"
    yield Finding(name="python", is_ok=True, message=message)


def missing_programs(programs: Mapping[str, str | None], needed: Sequence[str]) -> Finding | None:
    """Return that a login node lacks programs of Slurm, None if it has all that are needed."""
    missing = [name for name in needed if not programs.get(name)]
    if not missing:
        return None
    message = (
        f"the login node has no {', '.join(missing)} in the PATH of a login shell. Add Slurm's folder to "
        "~/.bash_profile there, or use another connection"
    )
    return Finding(name="programs", is_ok=False, message=message)


def _programs(programs: Mapping[str, str | None], config: ClusterConfig) -> Finding:
    present = ", ".join(name for name, path in programs.items() if path)
    if config.has_accounting and not programs.get("sacct"):
        present += "; the accounting is on, but without sacct the CPU efficiency of jobs is not shown"
    return Finding(name="programs", is_ok=True, message=present)


def _version(config: ClusterConfig) -> Finding:
    known = warnings(config.version)
    text = "not known" if config.version is None else version_text(config.version)
    return Finding(name="version", is_ok=is_usable(config.version), message=" ".join([f"{text}.", *known]).rstrip("."))


def _of_partition(options: SlurmOptions, used: Partition | None) -> Iterator[Finding]:
    if used is None:
        yield Finding(name="partition", is_ok=False, message=f"{no_partition(options)} Set --partition of the pool")
        return
    usable = sum(node.is_usable for node in used.nodes)
    message = f"'{used.name}' is {used.state}, {usable} of {len(used.nodes)} nodes can get jobs"
    yield Finding(name="partition", is_ok=used.state == "UP" and usable > 0, message=message)
    sizes = used.sizes(options)
    listed = ", ".join(f"{count} with {slots}" for slots, count in sizes.items())
    message = f"slots of nodes: {listed}" if sizes else "no node has a slot. Set --slots or --gres-name of the pool"
    yield Finding(name="nodes", is_ok=bool(sizes), message=message)
    limit = time_limit_of(options, used)
    if isinstance(limit, NoTimeLimit):
        yield Finding(name="time limit", is_ok=False, message=limit.reason.rstrip("."))
        return
    message = f"{slurm_time(limit)}; a longer training continues in further jobs, from its latest checkpoint"
    yield Finding(name="time limit", is_ok=True, message=message)


def _preemption(config: ClusterConfig, used: Partition | None) -> Finding:
    mode = used.preempt_mode if used is not None and used.preempt_mode else "+".join(sorted(config.preempt_mode))
    is_off = config.preempt_type in ("", "preempt/none") or mode.upper() in ("", "OFF")
    if is_off:
        return Finding(name="preemption", is_ok=True, message="off: Slurm preempts no job of this partition")
    if "SUSPEND" in mode.upper() or "GANG" in mode.upper():
        message = (
            f"PreemptMode {mode}: a preempted job is suspended. Its ranks stand still and keep their memory, and "
            "collective operations may time out"
        )
        return Finding(name="preemption", is_ok=True, message=message)
    grace_s = (used.grace_time_s if used is not None else None) or 0
    if grace_s:
        message = (
            f"PreemptMode {mode}, GraceTime {grace_s} s: a preempted job has {grace_s} s for a step and a checkpoint. "
            "If these take longer, the work since its latest checkpoint is lost"
        )
    else:
        message = (
            f"PreemptMode {mode}, GraceTime 0: a preempted job ends at once, and loses the work since its latest "
            "checkpoint. Set min_checkpoint_period in configurations, or ask the administrators for a GraceTime"
        )
    return Finding(name="preemption", is_ok=True, message=message)


def _containment(config: ClusterConfig) -> Finding:
    if config.contains_processes:
        return Finding(name="process tracking", is_ok=True, message=config.proctrack)
    message = (
        f"{config.proctrack or 'unknown'} is not proctrack/cgroup: Slurm may leave processes of an ended job. The "
        "supervisor ends those of its ranks itself"
    )
    return Finding(name="process tracking", is_ok=True, message=message)


def _priority(config: ClusterConfig) -> Finding:
    if config.accrues_while_held:
        message = "PriorityFlags has ACCRUE_ALWAYS: the waiting time of a job that depends on another one counts"
    else:
        message = (
            "PriorityFlags has no ACCRUE_ALWAYS: the waiting time of a job counts from the time at which it could start"
        )
    return Finding(name="priority", is_ok=True, message=message)


def _limits(options: SlurmOptions, config: ClusterConfig) -> Finding:
    most, own = config.max_job_count, options.max_jobs
    if most is not None and own is not None and own > most:
        message = (
            f"--max-jobs {own} of the pool is above the cluster's MaxJobCount {most}. Set --max-jobs {most} or less"
        )
        return Finding(name="max jobs", is_ok=False, message=message)
    of_pool = f"{own} at a time" if own is not None else "any number at a time (the pool has no --max-jobs)"
    of_cluster = "" if most is None else f"; MaxJobCount of the cluster is {most}"
    more = ". Limits of the account: sacctmgr show assoc" if "LIMITS" in config.enforces else ""
    return Finding(name="max jobs", is_ok=True, message=f"{of_pool}{of_cluster}{more}")


def _memory_of_ends(config: ClusterConfig) -> Finding:
    is_enough = config.has_accounting or config.min_job_age_s >= _SEEN_S
    message = f"MinJobAge {config.min_job_age_s} s, accounting {'on' if config.has_accounting else 'off'}"
    if not is_enough:
        message += f": the controller may forget an ended job before its end is read. {_SEEN_S} s are enough"
    return Finding(name="ended jobs", is_ok=is_enough, message=message)
