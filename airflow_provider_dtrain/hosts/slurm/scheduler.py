"""Slurm as an external scheduler: a job per gang, and a channel to its nodes."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.external_jobs import (
    EndKind,
    ExternalJob,
    JobAsk,
    JobEnd,
    JobPhase,
    JobStatus,
)
from airflow_provider_dtrain.core.scheduler_facts import Finding, JobShape, SchedulerFacts
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.core.slurm import job_ends
from airflow_provider_dtrain.core.slurm.cluster import NoTimeLimit, partition_of, time_limit_of, warning_s
from airflow_provider_dtrain.core.slurm.connection import CONN_TYPE, defaults_of, without_empty
from airflow_provider_dtrain.core.slurm.description import facts_of, findings_of, missing_programs, no_partition
from airflow_provider_dtrain.core.slurm.devices import job_devices
from airflow_provider_dtrain.core.slurm.job_states import RUNNING, WAITING, JobState
from airflow_provider_dtrain.core.slurm.node_shape import NodeShape, NoShape, node_shape
from airflow_provider_dtrain.core.slurm.options import SlurmOptions, slurm_options
from airflow_provider_dtrain.core.slurm.reasons import Outlook, slurm_reason
from airflow_provider_dtrain.core.slurm.refusals import FailureKind
from airflow_provider_dtrain.core.slurm.submission import JobRequest as SlurmRequest
from airflow_provider_dtrain.errors import (
    EnvironmentMissingError,
    HostAuthError,
    HostError,
    HostRefusedError,
    SchedulerAwayError,
    SlurmUnavailableError,
    SubmissionRefusedError,
)
from airflow_provider_dtrain.hosts.job import job as jobs
from airflow_provider_dtrain.hosts.job.byte_stream import Route, relay_route, ssh_routes, tcp_routes
from airflow_provider_dtrain.hosts.job.connection import JobEvents
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.job.program import relay_argv, serve_argv, serve_input
from airflow_provider_dtrain.hosts.schedulers.base import JobPolicy
from airflow_provider_dtrain.hosts.slurm.client import (
    NEEDED,
    Ambiguous,
    Refused,
    SlurmClient,
    Submission,
    Submitted,
)
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.hosts.transport.registry import transport_to
from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.slurm.cluster import Partition, SlurmJob
    from airflow_provider_dtrain.hosts.transport.base import Transport

#: Seconds for which the partitions of a cluster are known.
PARTITIONS_S = 600.0
#: Seconds for which the controller must have denied that it knows a job before the job counts as ended.
LOST_AFTER_S = 60.0
#: Difference of the clocks of the store and the controller up to which a renamed job is known by its time.
CLOCKS_S = 300.0
#: First and longest pause in seconds after a request that failed, and the longest one after "too many requests".
PAUSE_FIRST_S, PAUSE_MOST_S, PAUSE_LIMITED_S = 2.0, 60.0, 300.0
#: Submissions at the same time.
SUBMISSIONS = 4
#: Seconds for the nodes of a job to end.
END_S = 10.0
#: Begin of the names of all our jobs.
PREFIX = "dtrain-"
#: Longest orphan timeout of a job whose pool has none: Slurm's time limit ends it anyway.
NEVER_S = 366 * 86400.0
#: Slurm's warnings in words.
_CAUSES: Final = {
    "URG": "Slurm warns that the job's time ends, or that it will be preempted",
    "TERM": "Slurm ends the job: time limit, preemption or scancel",
    "time": "the job's time ends",
}
_ENDS: Final = {
    job_ends.EndKind.COMPLETED: EndKind.COMPLETED,
    job_ends.EndKind.FAILED: EndKind.FAILED,
    job_ends.EndKind.INTERRUPTED: EndKind.INTERRUPTED,
    job_ends.EndKind.TIMEOUT: EndKind.TIMEOUT,
    job_ends.EndKind.PREEMPTED: EndKind.PREEMPTED,
    job_ends.EndKind.NODE_FAIL: EndKind.NODE_FAILED,
    job_ends.EndKind.OUT_OF_MEMORY: EndKind.OUT_OF_MEMORY,
    job_ends.EndKind.CANCELLED: EndKind.CANCELLED,
    job_ends.EndKind.BOOT_FAIL: EndKind.NODE_FAILED,
    job_ends.EndKind.DEADLINE: EndKind.CANCELLED,
    job_ends.EndKind.REVOKED: EndKind.LOST,
    job_ends.EndKind.REFUSED: EndKind.FAILED,
}


class SlurmKind:
    """Pools whose backend is ``slurm``."""

    def checked(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options of a pool in the form that is stored."""
        return slurm_options(options).to_json()

    def connection_id(self, options: Mapping[str, Any]) -> str | None:
        """Return the connection of the login node, None if ``sbatch`` is on this machine."""
        found = slurm_options(options)
        return None if found.is_local else found.conn_id

    def slot_type(self, options: Mapping[str, Any]) -> SlotType:
        """Return the type of a pool's slots."""
        return "cuda" if slurm_options(options).slots == "gpu" else "cpu"

    def tested(self, connection: Any) -> tuple[bool, str]:
        """Return whether the login node answers and its Slurm can run jobs, and the findings in words."""
        options = _options({}, connection, f"connection '{connection.conn_id}'")
        of_test = SlurmScheduler(options, _login(f"connection '{connection.conn_id}'", connection))
        try:
            findings = of_test.checks()
            if wrong := [one for one in findings if not one.is_ok]:
                return False, " ".join(f"{one.name}: {one.message}." for one in wrong)
            facts = of_test.describe()
            used = facts.used.name if facts.used is not None else "none"
            return True, f"{facts.program}, cluster '{facts.cluster}', jobs in partition '{used}'."
        finally:
            of_test.close()

    def scheduler(self, pool: str, options: Mapping[str, Any], connection: Any) -> SlurmScheduler:
        """Return the scheduler of a pool, the same one as long as nothing changed."""
        found = _options(options, connection, f"pool '{pool}'")
        return _SCHEDULERS.get(pool, found, connection)

    def shape(self, facts: SchedulerFacts, slots: int, *, is_single_host: bool = False) -> JobShape:
        """Return the nodes of the job that a gang would be."""
        used = facts.used
        if facts.problem or used is None:
            raise SubmissionRefusedError(facts.problem or "The cluster has no partition for the jobs of the pool.")
        found = node_shape(slots, {one.slots: one.nodes for one in used.sizes}, is_single_host=is_single_host)
        if isinstance(found, NoShape):
            raise SubmissionRefusedError(found.reason)
        return JobShape(
            nodes=found.nodes,
            slots_per_node=found.slots_per_node,
            partition=used.name,
            time_limit_s=facts.time_limit_s,
        )


KIND = SlurmKind()


class _Schedulers:
    """Schedulers of this process, each with one connection to its login node. A forked child makes its own."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._of: dict[tuple[Any, ...], SlurmScheduler] = {}

    def get(self, pool: str, options: SlurmOptions, connection: Any) -> SlurmScheduler:
        if self._pid != os.getpid():
            self._forget()
        key = (pool, options, None if connection is None else connection.get_uri())
        with self._lock:
            if key not in self._of:
                for old in [one for one in self._of if one[0] == pool]:
                    self._of.pop(old).close()
                self._of[key] = SlurmScheduler(options, _login(f"login of pool '{pool}'", connection))
            return self._of[key]


_SCHEDULERS = _Schedulers()


def _options(options: Mapping[str, Any], connection: Any, source: str) -> SlurmOptions:
    """Return options together with those that the connection has.

    :raises ConfigError: an option of the connection cannot be used
    """
    defaults = defaults_of(connection.extra_dejson) if _is_own(connection) else {}
    if defaults:
        slurm_options(defaults, source=f"connection '{connection.conn_id}'")
    return slurm_options({**defaults, **options}, source=source)


def _is_own(connection: Any) -> bool:
    return connection is not None and connection.conn_type == CONN_TYPE


def _login(name: str, connection: Any) -> Transport:
    """Return a transport to the machine with Slurm's commands."""
    if _is_own(connection):
        connection = copy.copy(connection)
        connection.extra = json.dumps(without_empty(connection.extra_dejson))
    if connection is not None:
        return transport_to(name, connection, None)
    # It says which cluster the commands of this machine belong to.
    return LocalTransport(name, env={key: value for key, value in os.environ.items() if key == "SLURM_CONF"})


class SlurmScheduler:
    """Commands to the Slurm cluster of one pool.

    :param login: transport to the machine with Slurm's commands
    """

    def __init__(self, options: SlurmOptions, login: Transport) -> None:
        self.options = options
        self.login = login
        self.client = SlurmClient(login, options)
        self.max_jobs = options.max_jobs
        self.python = options.python
        self.settles_in_s = self.client.settles_in_s
        self._partitions: tuple[float, datetime, Sequence[Partition]] | None = None
        self._addresses: dict[str, str] = {}
        #: Job in the store -> reading of the monotonic clock at which the controller first did not know it.
        self._unknown: dict[int, float] = {}
        self._pauses = _Pauses()
        self._submissions = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection to the login node."""
        self.login.close()

    def new_access(self) -> bytes:
        """Return a new certificate and key."""
        identity = JobIdentity.create()
        return json.dumps({"certificate": identity.certificate, "key": identity.key}).encode()

    # -- commands ------------------------------------------------------------------------------
    def busy(self) -> str | None:
        """Return why this process should submit no job now, None if it may."""
        if self._submissions >= SUBMISSIONS:
            return "other jobs of the pool are being submitted"
        return self._pauses.reason()

    def submit(self, ask: JobAsk) -> str:
        """Submit a job and return Slurm's number."""
        with self._lock:
            self._submissions += 1
        try:
            with self._asking():
                return self._submit(ask)
        finally:
            with self._lock:
                self._submissions -= 1

    def _submit(self, ask: JobAsk) -> str:
        partition = self._partition()
        shape = self._shape(ask, partition)
        limit_s = self._time_limit(ask, partition)
        identity = _identity(ask.access)
        request = SlurmRequest(
            name=ask.name,
            shape=shape,
            time_limit_s=limit_s,
            warning_s=warning_s(limit_s=limit_s, stop_s=ask.stop_s, checkpoint_s=ask.checkpoint_s),
            excluded_nodes=tuple(ask.excluded),
            loader=serve_argv(self.python)[-1],
            stdin=serve_input(identity, ports=identity.ports(self.options.ports)).decode("ascii"),
        )
        return _number_of(self.client.submit(request))

    def _partition(self) -> Partition | None:
        return partition_of(self.options, self._known_partitions()[1])

    def _known_partitions(self, most_s: float = PARTITIONS_S) -> tuple[datetime, Sequence[Partition]]:
        """Return the partitions, and when they were requested: at most ``most_s`` seconds ago."""
        with self._lock:
            known = self._partitions
        if known is None or time.monotonic() - known[0] > most_s:
            with self._asking(at_once=most_s <= 0.0):
                known = (time.monotonic(), datetime.now(UTC), self.client.partitions())
            with self._lock:
                self._partitions = known
        return known[1:]

    @contextlib.contextmanager
    def _asking(self, *, at_once: bool = False) -> Iterator[None]:
        """Turn the errors of a login node or controller that cannot be asked now into one, which begins a pause.

        :param at_once: ask in a pause, too
        :raises SchedulerAwayError: Slurm cannot be asked now
        """
        if not at_once and (reason := self._pauses.reason()) is not None:
            raise SchedulerAwayError(reason)
        try:
            with _answering():
                yield
        except SchedulerAwayError as error:
            self._pauses.failed(error)
            raise
        self._pauses.answered()

    def _shape(self, ask: JobAsk, partition: Partition | None) -> NodeShape:
        if partition is None:
            raise SubmissionRefusedError(no_partition(self.options))
        found = node_shape(ask.slots, partition.sizes(self.options), is_single_host=ask.is_single_host)
        if isinstance(found, NoShape):
            raise SubmissionRefusedError(found.reason)
        return found

    def _time_limit(self, ask: JobAsk, partition: Partition | None) -> int:
        found = time_limit_of(self.options, partition)
        if isinstance(found, NoTimeLimit):
            raise SubmissionRefusedError(found.reason)
        return found

    def find(self, names: Sequence[str]) -> Mapping[str, Sequence[JobStatus]]:
        """Return the jobs under these names, oldest first."""
        with self._asking():
            found = self.client.find(names)
        # A refused submission may leave a record under its name.
        return {name: [_status(job) for job in of if not job.was_refused] for name, of in found.items()}

    def poll(self, jobs: Sequence[ExternalJob]) -> Mapping[int, JobStatus]:
        """Return the states of jobs: of all by one ``squeue``, and of those that have ended one by one."""
        if not jobs:
            return {}
        with self._asking(at_once=True):
            listed = {str(job.job_id): job for job in self.client.poll(PREFIX)}
            found: dict[int, JobStatus] = {}
            for job in jobs:
                known = listed.get(str(job.number))
                if known is None or known.is_final:
                    known = self.client.job(int(str(job.number))) or known
                if known is not None and _is_same(job, known):
                    self._unknown.pop(job.job_id, None)
                    found[job.job_id] = self._with_usage(known.job_id, self._with_failed_nodes(_status(known)))
                elif (lost := self._lost(job)) is not None:
                    found[job.job_id] = lost
            self._cancel_duplicates(jobs, listed.values())
            return found

    def _lost(self, job: ExternalJob) -> JobStatus | None:
        """Return the end of a job that the controller has not known for a while.

        The controller forgets a job some minutes after its end. One that has lost its state does not know a job that
        may still run, and gives its number out again: then only the supervisors on its nodes end the ranks for certain.
        """
        since = self._unknown.setdefault(job.job_id, time.monotonic())
        if time.monotonic() - since < LOST_AFTER_S:
            return None
        is_over = job.ends_at is not None and datetime.now(UTC) > job.ends_at + timedelta(seconds=CLOCKS_S)
        following = None if is_over else self.client.config().next_job_id
        is_forgotten = is_over or (following is not None and following > int(str(job.number)))
        message = f"Slurm does not know job {job.number}, which has ended. The next job resumes from a checkpoint."
        end = JobEnd(kind=EndKind.LOST, message=message, nodes=() if is_forgotten else job.nodes)
        return JobStatus(number=str(job.number), name=job.name, phase=JobPhase.ENDED, end=end)

    def _cancel_duplicates(self, jobs: Sequence[ExternalJob], listed: Iterable[SlurmJob]) -> None:
        """Cancel jobs that were accepted after their submission counted as failed."""
        numbers = {job.name: str(job.number) for job in jobs}
        surplus = [one.job_id for one in listed if str(one.job_id) != numbers.get(one.name, str(one.job_id))]
        live = {one.job_id for one in listed if not one.is_final}
        if found := [number for number in surplus if number in live]:
            self.client.cancel(found)

    def _with_failed_nodes(self, status: JobStatus) -> JobStatus:
        """Return the state of a job with the nodes that failed it. Ranks may live on there without Slurm's daemon."""
        if status.end is None or status.end.kind != EndKind.NODE_FAILED:
            return status
        usable = {node.name for one in self.client.partitions() for node in one.nodes if node.is_usable}
        failed = tuple(name for name in status.nodes if name not in usable) or status.nodes
        return replace(status, end=replace(status.end, nodes=failed))

    def _with_usage(self, number: int, status: JobStatus) -> JobStatus:
        """Return the state of an ended job with the CPU time that it used, where Slurm accounts for it."""
        if status.end is None:
            return status
        share = None
        with contextlib.suppress(HostError, EnvironmentMissingError):
            share = self.client.cpu_share(number)
        return replace(status, end=replace(status.end, cpu_share=share))

    def cancel(self, numbers: Sequence[str]) -> None:
        """End jobs."""
        with self._asking(at_once=True):
            self.client.cancel([int(number) for number in numbers])

    # -- facts ---------------------------------------------------------------------------------
    def describe(self) -> SchedulerFacts:
        """Return partitions, sizes of nodes and limits."""
        at, partitions = self._known_partitions()
        with self._asking():
            return facts_of(self.options, self.client.known_config(), partitions, at)

    def checks(self) -> Sequence[Finding]:
        """Return the checks of ``doctor``."""
        with self._asking(at_once=True):
            programs = self.client.programs()
            if (finding := missing_programs(programs, NEEDED)) is not None:
                return [finding]
            config = self.client.config()
        _, partitions = self._known_partitions(most_s=0.0)
        return list(findings_of(self.options, programs=programs, config=config, partitions=partitions))

    # -- nodes ---------------------------------------------------------------------------------
    def channel(self, job: ExternalJob, access: bytes) -> SlurmChannel:
        """Return the channel to the nodes of a running job."""
        identity = _identity(access)
        return SlurmChannel(str(job.number), identity, self._routes(job, identity))

    def _routes(self, job: ExternalJob, identity: JobIdentity) -> list[Route]:
        ports = identity.ports(self.options.ports)
        address = self._address(job.nodes[0])
        if isinstance(self.login, SSHTransport):
            routes = ssh_routes(self.login, address, ports)
        else:
            routes = tcp_routes(address, ports)
        relay = [
            "srun",
            *self.client.of_cluster,
            "--jobid",
            str(job.number),
            "--overlap",
            "-N1",
            "-n1",
            "-w",
            job.nodes[0],
        ]
        relay += ["--gres=none", "--cpu-bind=none", "--mem=0", "--mpi=none", "--unbuffered"]
        return [*routes, relay_route(self.login, [*relay, *relay_argv(self.python, identity, str(job.number))])]

    def _address(self, node: str) -> str:
        """Return the address of a node, which the controller is asked for once."""
        with self._lock:
            known = self._addresses.get(node)
        if known is None:
            with self._asking():
                known = self.client.node_addresses([node]).get(node, node)
            with self._lock:
                self._addresses[node] = known
        return known

    def devices(self, count: int, facts: Mapping[str, Any], node: Transport) -> Sequence[Mapping[str, Any] | None]:
        """Return the GPUs of a job on a node, or CPU slots."""
        if self.options.slots == "cpu" or not count:
            return [None] * count
        done = node.run(["printenv", "CUDA_VISIBLE_DEVICES"])
        visible = done.stdout.decode("utf-8", "replace").strip() if done.exit_code == 0 else None
        found = job_devices(visible, list(facts.get("gpus") or ()), count)
        if isinstance(found, str):
            raise HostRefusedError(node.host, f"Host '{node.host}': {found}.", code="devices")
        return found


class SlurmChannel:
    """Channel to the nodes of one job."""

    def __init__(self, number: str, identity: JobIdentity, routes: Sequence[Route]) -> None:
        self.on_warning: Callable[[int, str], None] | None = None
        self._job = jobs.Job(number, identity, routes, events=JobEvents(on_warning=self._warned))

    def _warned(self, node: int, cause: str) -> None:
        if self.on_warning is not None:
            self.on_warning(node, _CAUSES.get(cause, cause))

    def transport(self, host: str, node: int) -> Transport:
        """Return a transport to a node."""
        return self._job.transport(host, node)

    def keep(self, policy: JobPolicy) -> None:
        """Send the policy to all nodes."""
        self._job.set_policy(
            jobs.JobPolicy(
                orphan_timeout_s=policy.orphan_timeout_s or NEVER_S,
                warn_at=policy.warn_at_s,
                on_warning=policy.on_warning,
            )
        )

    def end(self) -> bool:
        """Ask the job to end, and return whether its nodes have confirmed it."""
        try:
            self._job.end(timeout_s=END_S)
        except HostError:
            return False
        return True

    def close(self) -> None:
        """Close the channel."""
        self._job.close()


class _Pauses:
    """Growing pauses after requests that failed, for all users of one scheduler in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._until = 0.0
        self._error: SchedulerAwayError | None = None

    def reason(self) -> str | None:
        """Return why Slurm should not be asked now, None if it may."""
        with self._lock:
            is_over = self._error is None or time.monotonic() >= self._until
            return None if is_over else str(self._error)

    def failed(self, error: SchedulerAwayError) -> None:
        """Begin a pause, unless one has begun for a failure of the same time."""
        most_s = PAUSE_LIMITED_S if error.is_rate_limited else PAUSE_MOST_S
        with self._lock:
            if time.monotonic() >= self._until:
                self._pause_s = min(most_s, max(PAUSE_FIRST_S, 2.0 * self._pause_s))
                self._until = time.monotonic() + self._pause_s
            self._error = error

    def answered(self) -> None:
        """End the pause."""
        with self._lock:
            self._pause_s = self._until = 0.0
            self._error = None


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except HostAuthError as error:
        raise SchedulerAwayError(f"waiting for a login: {error}") from error
    except SlurmUnavailableError as error:
        raise SchedulerAwayError(f"Slurm does not answer: {error}", is_rate_limited=error.is_rate_limited) from error
    except (HostError, EnvironmentMissingError) as error:
        raise SchedulerAwayError(f"Slurm does not answer: {error}") from error


def _is_same(job: ExternalJob, known: SlurmJob) -> bool:
    """Return whether a job of Slurm is one of the store. A user may have renamed it.

    A controller that has lost its state gives numbers out again.
    """
    if known.name == job.name:
        return True
    if job.submitted_at is None or known.submitted_s is None:
        return False
    return abs(known.submitted_s - job.submitted_at.timestamp()) < CLOCKS_S


def _number_of(found: Submission) -> str:
    match found:
        case Submitted(job_id=job_id):
            return str(job_id)
        case Refused(kind=FailureKind.NEVER | FailureKind.UNKNOWN, message=message):
            raise SubmissionRefusedError(f"Slurm refuses the job: {message}")
        case Refused(kind=FailureKind.LOGIN, message=message):
            raise SchedulerAwayError(f"waiting for a login: {message}")
        case Refused(kind=kind, message=message):
            is_limited = kind == FailureKind.RATE_LIMITED
            raise SchedulerAwayError(f"Slurm did not take the job yet: {message}", is_rate_limited=is_limited)
        case Ambiguous(message=message):
            raise SchedulerAwayError(f"It is not clear whether Slurm took the job: {message}", is_ambiguous=True)


def _identity(access: bytes) -> JobIdentity:
    return JobIdentity(**json.loads(access))


def _status(job: SlurmJob) -> JobStatus:
    end = job_ends.end_of(job)
    reason = slurm_reason(job.reason) if job.state in WAITING else None
    return JobStatus(
        number=str(job.job_id),
        name=job.name,
        phase=_phase(job),
        reason=reason.sentence if reason is not None else "",
        nodes=_first_is_batch(job),
        started_at=_time(job.started_s) if job.state not in WAITING else None,
        ends_at=_time(job.ends_s) if job.state not in WAITING else None,
        expected_at=_time(job.expected_start_s),
        end=None if end is None else JobEnd(kind=_end_kind(end), message=end.message),
        is_hopeless=reason is not None and reason.outlook == Outlook.NEVER,
    )


def _end_kind(end: job_ends.JobEnd) -> EndKind:
    """Return the kind of an end. Slurm itself cancels jobs too, which is no request of a user."""
    if end.kind == job_ends.EndKind.CANCELLED and end.next_step == job_ends.NextStep.RESUME:
        return EndKind.LOST
    return _ENDS[end.kind]


def _phase(job: SlurmJob) -> JobPhase:
    if job.is_final:
        return JobPhase.ENDED
    if job.state == JobState.COMPLETING:
        return JobPhase.ENDING
    # A node that boots for the job answers nothing yet.
    if job.state in RUNNING and job.state != JobState.CONFIGURING:
        return JobPhase.RUNNING
    return JobPhase.WAITING


def _first_is_batch(job: SlurmJob) -> tuple[str, ...]:
    """Return the nodes of a job in the order of its tasks. The first one runs the script."""
    return tuple(sorted(job.nodes, key=lambda name: (name != job.batch_node, job.nodes.index(name))))


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
