"""Client of one Slurm cluster: submits, finds, observes and cancels jobs through a login node."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from airflow_provider_dtrain.core.safe_repr import printable_line
from airflow_provider_dtrain.core.slurm.cluster import ClusterConfig, Node, Partition, SlurmJob
from airflow_provider_dtrain.core.slurm.hostlist import compress
from airflow_provider_dtrain.core.slurm.options import SlurmOptions
from airflow_provider_dtrain.core.slurm.refusals import CommandFailure, FailureKind, command_failure
from airflow_provider_dtrain.core.slurm.releases import Version, version_of
from airflow_provider_dtrain.core.slurm.submission import JobRequest, batch_script, sbatch_arguments
from airflow_provider_dtrain.errors import (
    EnvironmentMissingError,
    HostAuthError,
    HostProtocolError,
    HostUnreachableError,
    SlurmUnavailableError,
)
from airflow_provider_dtrain.hosts.slurm import answers
from airflow_provider_dtrain.hosts.slurm.login_shell import CommandOutput, LoginShell
from airflow_provider_dtrain.hosts.transport.base import Transport

_T = TypeVar("_T")
#: Programs that a pool needs, and those that it uses where they are.
NEEDED: Final = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
OPTIONAL: Final = ("sacct",)
#: sbatch itself tries again for about two minutes while the controller is away. Each try may be accepted.
SUBMIT_TIMEOUT_S: Final = 45.0
QUERY_TIMEOUT_S: Final = 30.0
#: Seconds that a submission may last beyond the limit of ``sbatch``: the connection to the login node, the login, and
#: the end of the command.
SETTLES_AFTER_S = 60.0
#: Jobs of one scancel, so that its arguments stay short.
_CANCELLED_AT_ONCE: Final = 200
#: Variables of a login that change what a command does or prints.
_UNSET: Final[dict[str, tuple[str, ...]]] = {
    "sbatch": (
        "SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_DEBUG", "SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_REQUEUE",
        "SBATCH_GPUS_PER_SOCKET", "SBATCH_CPUS_PER_GPU", "SBATCH_NO_KILL", "SBATCH_INPUT", "SBATCH_ERROR",
    ),
    "squeue": (
        "SQUEUE_ALL", "SQUEUE_ARRAY", "SQUEUE_ARRAY_UNIQUE", "SQUEUE_FEDERATION", "SQUEUE_FORMAT", "SQUEUE_FORMAT2",
        "SQUEUE_ACCOUNT", "SQUEUE_LICENSES", "SQUEUE_NAMES", "SQUEUE_PARTITION", "SQUEUE_PRIORITY", "SQUEUE_QOS",
        "SQUEUE_SIB", "SQUEUE_SIBLING", "SQUEUE_SORT", "SQUEUE_STATES", "SQUEUE_USERS",
    ),
    "sinfo": ("SINFO_ALL", "SINFO_FEDERATION", "SINFO_FORMAT", "SINFO_PARTITION", "SINFO_SORT"),
    "scontrol": ("SCONTROL_FEDERATION", "SCONTROL_FUTURE", "SCONTROL_SIB", "SCONTROL_SIBLING"),
    "sacct": ("SACCT_FEDERATION", "SACCT_FORMAT"),
    "scancel": (
        "SCANCEL_ACCOUNT", "SCANCEL_BATCH", "SCANCEL_FULL", "SCANCEL_HURRY", "SCANCEL_INTERACTIVE", "SCANCEL_NAME",
        "SCANCEL_PARTITION", "SCANCEL_QOS", "SCANCEL_STATE", "SCANCEL_USER", "SCANCEL_VERBOSE", "SCANCEL_WCKEY",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The controller accepted a job."""

    job_id: int
    #: Cluster that took it, "" for the one of the login node.
    cluster: str = ""
    #: Warnings of ``sbatch``, one line; "" without one.
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The job was certainly not accepted.

    With ``FailureKind.NEVER`` another try fails as well. The other kinds are reasons to try again later.
    """

    kind: FailureKind
    #: Slurm's words, one line.
    message: str


@dataclass(frozen=True, kw_only=True)
class Ambiguous:
    """The job may have been accepted. The caller looks for its name before it submits again."""

    message: str
    #: Seconds after which a command that was cut off cannot be accepted any longer.
    settles_in_s: float = 0.0


Submission = Submitted | Refused | Ambiguous


class SlurmClient:
    """Slurm's commands for one pool.

    Every method has a deadline. Methods other than :meth:`submit` raise :exc:`SlurmUnavailableError` if the controller
    does not answer, :exc:`HostAuthError` for an expired login, :exc:`HostUnreachableError` if the login node does not
    answer, :exc:`HostProtocolError` for output that is not Slurm's, and :exc:`EnvironmentMissingError` without its
    programs. Thread-safe.

    :param transport: of the login node
    :param options: of the pool
    :param submit_timeout_s: limit of ``sbatch`` on the login node
    :param query_timeout_s: limit of every other command
    """

    def __init__(
        self,
        transport: Transport,
        options: SlurmOptions,
        *,
        submit_timeout_s: float = SUBMIT_TIMEOUT_S,
        query_timeout_s: float = QUERY_TIMEOUT_S,
    ) -> None:
        self.options = options
        self._submit_timeout_s = submit_timeout_s
        self._query_timeout_s = query_timeout_s
        self._shell = LoginShell(transport)
        self._lock = threading.Lock()
        self._requests = 0
        self._user = ""
        self._config: ClusterConfig | None = None

    @property
    def host(self) -> str:
        """Name of the login node."""
        return self._shell.host

    @property
    def settles_in_s(self) -> float:
        """Seconds after the begin of a submission after which it cannot be accepted any longer."""
        return self._submit_timeout_s + SETTLES_AFTER_S

    @property
    def controller_requests(self) -> int:
        """Requests to the controller so far, as ``sdiag`` counts them."""
        return self._requests

    def submit(self, request: JobRequest) -> Submission:
        """Submit a job.

        :raises HostAuthError: the login is refused or has expired: the job was not submitted
        :raises HostKeyError: the key of the login node is unknown or has changed: the job was not submitted
        :raises ValueError: the script is too large
        """
        script = batch_script(self.options, request).encode()
        argv = ["sbatch", *sbatch_arguments(self.options, request)]
        try:
            done = self._run(argv, requests=1, stdin=script, timeout_s=self._submit_timeout_s)
        except EnvironmentMissingError as error:
            return Refused(kind=FailureKind.MISSING, message=str(error))
        except (HostUnreachableError, HostProtocolError) as error:
            return Ambiguous(message=str(error), settles_in_s=self._submit_timeout_s + self._shell.margin_s)
        return submission_of(done)

    def poll(self, prefix: str) -> list[SlurmJob]:
        """Return the jobs of this account whose names begin with a prefix, also those that just ended.

        The controller forgets a job MinJobAge seconds after its end.
        """
        table = answers.Table(answers.QUEUE_FIELDS)
        # The state of each job is needed, and the filters of squeue save the controller nothing.
        argv = ["squeue", "-h", "-a", "-r", "-S", "i", "-t", "all", "-u", self._account(), "-o", table.format]
        output = self._query(argv, requests=2)
        return [job for job in self._parsed(lambda: _jobs(table, output)) if job.name.startswith(prefix)]

    def find(self, names: Collection[str]) -> dict[str, list[SlurmJob]]:
        """Return name -> jobs with this name, oldest first, for those of the names that have one."""
        found: dict[str, list[SlurmJob]] = {}
        for job in self.poll(""):
            if job.name in names:
                found.setdefault(job.name, []).append(job)
        return {name: sorted(jobs, key=lambda job: job.job_id) for name, jobs in found.items()}

    def job(self, job_id: int) -> SlurmJob | None:
        """Return a job with exit code, restarts and comment, None if neither controller nor accounting knows it.

        The caller compares the name: a controller that lost its state gives numbers out again.
        """
        done = self._run(["scontrol", *self._local(), "show", "job", "-o", str(job_id)], requests=1)
        if done.exit_code == 0:
            return self._parsed(lambda: answers.shown_job(done.stdout))
        failure = command_failure(done.exit_code, done.stderr)
        if failure.kind != FailureKind.NO_JOB:
            raise self._error("scontrol", failure)
        return self._accounted(job_id) if self.known_config().has_accounting else None

    def cancel(self, job_ids: Sequence[int]) -> None:
        """Cancel jobs. Those that have ended or are not known are left out."""
        for start in range(0, len(job_ids), _CANCELLED_AT_ONCE):
            some = job_ids[start : start + _CANCELLED_AT_ONCE]
            done = self._run(["scancel", *map(str, some)], requests=len(some))
            failure = command_failure(done.exit_code, done.stderr)
            if done.exit_code and failure.kind != FailureKind.NO_JOB:
                raise self._error("scancel", failure)

    def expected_starts(self, job_ids: Sequence[int]) -> dict[int, float]:
        """Return number of a waiting job -> seconds since 1970 at which Slurm expects to start it, where it does."""
        if not job_ids:
            return {}
        table = answers.Table(("%A", "%S"))
        ids = ",".join(map(str, job_ids))
        done = self._run(["squeue", "-h", "-a", "--start", "-j", ids, "-o", table.format], requests=2)
        failure = command_failure(done.exit_code, done.stderr)
        # A single number that is not known is an error, one of several is not.
        if done.exit_code and failure.kind != FailureKind.NO_JOB:
            raise self._error("squeue", failure)
        rows = self._parsed(
            lambda: [(int(job_id), answers.epoch_s(start)) for job_id, start in table.rows(done.stdout)]
        )
        return {job_id: start for job_id, start in rows if start is not None}

    def partitions(self) -> list[Partition]:
        """Return the partitions that this account sees, with their nodes."""
        table = answers.Table(answers.NODE_FIELDS)
        listing = self._query(["sinfo", "-h", "-e", "-o", table.format], requests=2)
        output = self._query(["scontrol", *self._local(), "show", "partition", "-o"], requests=1)
        nodes: dict[str, list[Node]] = {}
        for partition, found in self._parsed(lambda: list(map(answers.nodes_of, table.rows(listing)))):
            nodes.setdefault(partition, []).extend(found)
        return self._parsed(lambda: answers.partitions_of(output, nodes))

    def config(self) -> ClusterConfig:
        """Return the configuration of the cluster."""
        output = self._query(["scontrol", *self._local(), "show", "config"], requests=2)
        self._config = self._parsed(lambda: answers.config_of(output))
        return self._config

    def node_addresses(self, names: Collection[str]) -> dict[str, str]:
        """Return name of a node -> its address, for those of the nodes that the controller knows."""
        if not names:
            return {}
        nodes = compress(sorted(names))
        output = self._query(["scontrol", *self._local(), "show", "node", "-o", nodes], requests=2)
        found = self._parsed(lambda: answers.addresses_of(output))
        return {name: address for name, address in found.items() if name in names}

    def programs(self) -> dict[str, str | None]:
        """Return name of each of Slurm's programs -> its path, None where the login node has none."""
        loop = 'for name do printf "%s=%s\\n" "$name" "$(command -v "$name")"; done'
        done = self._shell.run(["sh", "-c", loop, "sh", *NEEDED, *OPTIONAL], timeout_s=self._query_timeout_s)
        found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        return {name: found.get(name) or None for name in (*NEEDED, *OPTIONAL)}

    def version(self) -> Version | None:
        """Return the version of the programs on the login node."""
        return version_of(self._query(["sbatch", "--version"], requests=0))

    def output_end(self, job_id: int, most: int = 64 * 1024) -> str | None:
        """Return the end of the output file of a job, None if the pool names none or the login node cannot read it.

        :param most: maximum bytes
        """
        if self.options.output is None:
            return None
        path = self.options.output.replace("%j", str(job_id)).replace("%%", "%")
        done = self._shell.run(["tail", "-c", str(most), "--", path], timeout_s=self._query_timeout_s)
        return done.stdout if done.exit_code == 0 else None

    def cpu_share(self, job_id: int) -> float | None:
        """Return the CPU time that an ended job used as a share of that of its CPUs, None if it is not accounted."""
        if not self.known_config().has_accounting:
            return None
        # Not with -X: then the row of the job lacks the time of its steps, which it has all of otherwise.
        argv = ["sacct", *self.of_cluster, "-n", "-P", "-j", str(job_id), "-o", "TotalCPU,CPUTimeRAW"]
        return answers.cpu_share_of(self._query(argv, requests=0))

    def _accounted(self, job_id: int) -> SlurmJob | None:
        separator = f"/{secrets.token_hex(8)}/"
        fields = ",".join(answers.ACCOUNT_FIELDS)
        argv = [
            "sacct",
            *self.of_cluster,
            "-n",
            "-X",
            "-P",
            f"--delimiter={separator}",
            "-j",
            str(job_id),
            "-o",
            fields,
        ]
        rows = [line.split(separator) for line in self._query(argv, requests=0).splitlines() if separator in line]
        jobs = self._parsed(lambda: [answers.accounted_job([part.strip() for part in row]) for row in rows])
        return next((job for job in jobs if job.job_id == job_id), None)

    def known_config(self) -> ClusterConfig:
        """Return the configuration of the cluster, requested once."""
        return self._config or self.config()

    def _account(self) -> str:
        if not self._user:
            self._user = self._query(["id", "-un"], requests=0).strip()
        return self._user

    @property
    def of_cluster(self) -> list[str]:
        """Option that names the pool's cluster for Slurm's commands, empty for that of the login node."""
        return ["-M", self.options.clusters] if self.options.clusters else []

    def _local(self) -> list[str]:
        """Return the option that spares the controller a request for its federation."""
        return self.of_cluster or ["--local"]

    def _query(self, argv: Sequence[str], *, requests: int) -> str:
        done = self._run(argv, requests=requests)
        if done.exit_code:
            raise self._error(argv[0], command_failure(done.exit_code, done.stderr))
        return done.stdout

    def _run(
        self, argv: Sequence[str], *, requests: int, stdin: bytes = b"", timeout_s: float | None = None
    ) -> CommandOutput:
        program, *rest = argv
        with self._lock:
            self._requests += requests
        cluster = self.of_cluster if program in ("squeue", "sinfo", "scancel") else []
        if program in ("squeue", "sinfo") and not cluster:
            cluster = ["--local"]
        unset = [part for name in _UNSET.get(program, ()) for part in ("-u", name)]
        # sbatch gives its environment to the job.
        plain = [] if program == "sbatch" else ["LC_ALL=C", "SLURM_TIME_FORMAT=%s"]
        return self._shell.run(
            ["env", *unset, *plain, program, *cluster, *rest], stdin=stdin, timeout_s=timeout_s or self._query_timeout_s
        )

    def _parsed(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except (ValueError, IndexError, KeyError) as error:
            raise HostProtocolError(
                self.host, f"Slurm on '{self.host}' printed something that is not expected: {error}."
            ) from error

    def _error(self, program: str, failure: CommandFailure) -> Exception:
        subject = f"{program} on '{self.host}'"
        match failure.kind:
            case FailureKind.AMBIGUOUS | FailureKind.AWAY | FailureKind.RATE_LIMITED:
                return SlurmUnavailableError(
                    self.host,
                    f"Slurm's controller does not answer {subject}: {failure.message}",
                    is_rate_limited=failure.kind == FailureKind.RATE_LIMITED,
                )
            case FailureKind.LOGIN:
                return HostAuthError(self.host, f"Slurm refuses the login of {subject}: {failure.message}")
            case FailureKind.MISSING:
                return EnvironmentMissingError(f"Login node '{self.host}' lacks {program}: {failure.message}")
        return HostProtocolError(self.host, f"{subject} failed: {failure.message}")


def submission_of(done: CommandOutput) -> Submission:
    """Return the result of ``sbatch`` from its exit status and output."""
    job_id, cluster = _job_of(done.stdout)
    if done.exit_code == 0 and job_id is not None:
        warning = printable_line(done.stderr, 500)
        return Submitted(job_id=job_id, cluster=cluster, warning=warning)
    failure = command_failure(done.exit_code, done.stderr)
    if done.exit_code == 0 or job_id is not None or failure.kind in (FailureKind.AMBIGUOUS, FailureKind.UNKNOWN):
        printed = printable_line(done.stdout, 300) or "nothing"
        return Ambiguous(message=f"sbatch printed {printed}. {failure.message}")
    return Refused(kind=failure.kind, message=failure.message)


def _job_of(stdout: str) -> tuple[int | None, str]:
    """Return job and cluster in the output of ``sbatch``, with or without ``--parsable``."""
    lines = [line.strip() for line in stdout.splitlines() if line.strip()]
    if not lines:
        return None, ""
    text = lines[-1].removeprefix("Submitted batch job ").replace(" on cluster ", ";")
    number, _, cluster = text.partition(";")
    return (int(number), cluster) if number.isascii() and number.isdecimal() and len(number) < 11 else (None, "")


def _jobs(table: answers.Table, output: str) -> list[SlurmJob]:
    return [answers.queued_job(row) for row in table.rows(output)]
