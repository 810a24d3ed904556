"""A job as this process sees it: one connection for all its users."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_dtrain.errors import HostError, HostUnreachableError
from airflow_provider_dtrain.hosts.job.byte_stream import Route
from airflow_provider_dtrain.hosts.job.channel import JobTransport
from airflow_provider_dtrain.hosts.job.connection import JobConnection, JobEvents
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.transport.run_command import not_in_children
from airflow_provider_dtrain.supervisor.serve.frames import Frame, Kind, with_document

#: Seconds for one route. A port that a firewall drops takes all of it.
ROUTE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class JobPolicy:
    """Lifetime of a job's processes, and their reaction to a warning."""

    #: Seconds without a follower after which the job ends itself.
    orphan_timeout_s: float
    #: Unix time at which every node warns, None without one.
    warn_at: float | None = None
    #: Command that every node executes once per warning; empty: none.
    on_warning: tuple[str, ...] = ()

    def frame(self) -> Frame:
        """Return the frame that sets the policy."""
        document = {
            "orphan_timeout_s": self.orphan_timeout_s,
            "warn_at": self.warn_at,
            "on_warning": list(self.on_warning),
        }
        return with_document(Kind.POLICY, document)


class Job:
    """Users of one job in this process. Thread-safe.

    The connection opens when a user needs it, and again after it was cut. It closes with the last transport, so that a
    process without use for the job does not keep it alive. Without a transport, each request has its own connection.

    :param job_id: Slurm's number of the job
    :param routes: ways to the first node, in the order in which they are tried
    :param events: callbacks about nodes. Each new connection reports the warnings so far again
    :param policy: policy that each connection begins with, None to leave the job's own
    """

    def __init__(
        self,
        job_id: str,
        identity: JobIdentity,
        routes: Sequence[Route],
        *,
        events: JobEvents | None = None,
        policy: JobPolicy | None = None,
    ) -> None:
        self.job_id = job_id
        self._identity = identity
        self._routes = list(routes)
        self._events = events or JobEvents()
        self._policy = policy
        self._connection: JobConnection | None = None
        #: Transports, and requests in progress.
        self._users = 0
        self._lock = threading.Lock()
        #: Held by the thread that connects.
        self._connecting = threading.Lock()
        #: Route of the current or last connection.
        self.route: Route | None = None
        not_in_children(self)

    def transport(self, host: str, node: int) -> JobTransport:
        """Return a transport to a node, which is not connected yet.

        :param host: name under which the node is registered
        :param node: number of the node in the job
        """
        with self._lock:
            self._users += 1
        return JobTransport(host, node, self._connection_of_transport, self._release)

    def _connection_of_transport(self, deadline: float) -> JobConnection:
        # The transport may be closed meanwhile.
        with self._used():
            return self.connection(deadline)

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Keep the connection open while the block runs."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            self._release()

    def connection(self, deadline: float) -> JobConnection:
        """Return the live connection, and connect if there is none. Blocks. It stays open until :meth:`close`.

        :param deadline: reading of the monotonic clock
        :raises HostError: no route leads to the first node
        """
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise HostUnreachableError(
                self.job_id, f"Job '{self.job_id}' is not connected yet: connecting takes too long in another thread."
            )
        try:
            with self._lock:
                connection = self._connection
            if connection is None or not connection.is_alive:
                connection = self._connected(deadline)
                with self._lock:
                    self._connection = connection
            return connection
        finally:
            self._connecting.release()

    def hosts(self, *, timeout_s: float = 30.0) -> dict[int, str]:
        """Return node -> host name of the nodes that are connected to the first one."""
        with self._used():
            return dict(self.connection(time.monotonic() + timeout_s).nodes.hosts)

    def set_policy(self, policy: JobPolicy, *, timeout_s: float = 30.0) -> None:
        """Set the policy of the job, and of later connections.

        :raises HostError: the first node did not confirm it in time
        """
        self._policy = policy
        deadline = time.monotonic() + timeout_s
        with self._used():
            connection = self.connection(deadline)
            connection.post(policy.frame())
            self._confirm(connection, deadline)

    def end(self, *, timeout_s: float = 30.0) -> None:
        """End the processes on all nodes, and with them the job step.

        :raises HostError: the first node cannot be reached, or did not end in time
        """
        deadline = time.monotonic() + timeout_s
        with self._used():
            connection = self.connection(deadline)
            connection.post(Frame(Kind.END))
            if not connection.wait_closed(deadline):
                raise HostUnreachableError(self.job_id, f"Job '{self.job_id}' did not end within {timeout_s:g} s.")

    def close(self) -> None:
        """Close the connection. Repeatable, never raises. The job lives on until its orphan timeout."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child without a message to the other side."""
        connection, self._connection = self._connection, None
        self._lock, self._connecting = threading.Lock(), threading.Lock()
        if connection is not None:
            connection.abandon()

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            connection = self._connection if self._users == 0 else None
            if connection is not None:
                self._connection = None
        if connection is not None:
            connection.close()

    def _connected(self, deadline: float) -> JobConnection:
        problems: list[HostError] = []
        # The route that worked before comes first.
        for route in sorted(self._routes, key=lambda one: one is not self.route):
            until = min(deadline, time.monotonic() + ROUTE_S)
            try:
                connection = self._try(route, until)
            except HostError as error:
                problems.append(error)
            else:
                self.route = route
                return connection
            if time.monotonic() >= deadline:
                break
        raise self._unreachable(problems)

    def _try(self, route: Route, until: float) -> JobConnection:
        stream = route.open(until)
        try:
            connection = JobConnection(self.job_id, stream, self._identity, self._events, deadline=until)
            if self._policy is not None:
                connection.post(self._policy.frame())
            return connection
        except BaseException:
            stream.close()
            raise

    def _unreachable(self, problems: Sequence[HostError]) -> HostError:
        if len(problems) == 1:
            return problems[0]
        # Most of sixteen ports are refused. The route that worked before is the first one, and a relay the last.
        reasons = " ".join(dict.fromkeys(str(one) for one in [*problems[:2], *problems[-1:]]))
        return HostUnreachableError(
            self.job_id,
            f"No way leads to the first node of job '{self.job_id}', {len(problems)} of {len(self._routes)} ways were "
            f"tried: {reasons}",
        )

    def _confirm(self, connection: JobConnection, deadline: float) -> None:
        try:
            connection.confirm(deadline)
        except TimeoutError as error:
            raise HostUnreachableError(
                self.job_id, f"The first node of job '{self.job_id}' did not confirm the policy in time."
            ) from error


class Jobs:
    """Jobs of this process, by their number. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, job_id: str, make: Callable[[], Job]) -> Job:
        """Return the job, and make it if this process does not have it."""
        self._after_fork()
        with self._lock:
            if job_id not in self._jobs:
                self._jobs[job_id] = make()
            return self._jobs[job_id]

    def drop(self, job_id: str) -> None:
        """Forget a job that has ended, and close its connection. Repeatable."""
        self._after_fork()
        with self._lock:
            job = self._jobs.pop(job_id, None)
        if job is not None:
            job.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # A forked child owns neither its parent's connections nor the state of the parent's locks.
            self._pid, self._jobs, self._lock = os.getpid(), {}, threading.Lock()
