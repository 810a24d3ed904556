"""Supervisors of a job's nodes: parts that all nodes have, and the nodes beside the first one."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from .addresses import names_of_first_node, resolve
from .commands import Commands, command_environment
from .connection import Connection
from .frames import DEAD_S, PING_S, PROTOCOL, TO_COMMAND, Frame, FrameError, Kind, with_document
from .tls import TlsSession, tls_context

#: Exit codes: the follower ended the job; no follower came back; no address or first node; bad parameters.
ENDED, ORPHANED, DISCONNECTED, BAD_PARAMETERS = 0, 3, 4, 5
#: Period of the checks of times.
TICK_S = 0.5
#: Time for a connection to prove that it belongs to the job, and to name its role.
HANDSHAKE_S = 10.0
#: Time for one connection to the first node, and longest pause between two rounds.
DIAL_S, PAUSE_S = 3.0, 2.0
#: Time for queued frames at the end.
FLUSH_S = 2.0


def log(message: str) -> None:
    """Write a line to the output of the job. Never raises."""
    with contextlib.suppress(OSError):
        os.write(2, f"dtrain, {message}\n".encode("utf-8", "replace"))


class Parameters(NamedTuple):
    """Second line of standard input."""

    certificate: str
    key: str
    ports: list[int]
    #: Seconds without a follower before the first policy.
    unattended_s: float
    #: Seconds for a node to reach the first node.
    join_s: float

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Parameters:
        """Return the parameters.

        :raises ValueError: the control side has another protocol
        """
        if document["protocol"] != PROTOCOL:
            raise ValueError(f"protocol must be {PROTOCOL}, got {document['protocol']!r}")
        return cls(
            str(document["certificate"]),
            str(document["key"]),
            [int(port) for port in document["ports"]],
            float(document["unattended_s"]),
            float(document["join_s"]),
        )


class Policy(NamedTuple):
    """Lifetime that a follower has set."""

    orphan_timeout_s: float
    #: Unix time of a warning, None without one.
    warn_at: float | None
    #: Command of a warning, empty without one.
    on_warning: list[str]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Policy:
        """Return a policy.

        :raises FrameError: a field is missing or has another type
        """
        try:
            timeout_s, warn_at, argv = document["orphan_timeout_s"], document["warn_at"], document["on_warning"]
            if not isinstance(argv, list) or not all(isinstance(one, str) for one in argv) or not timeout_s > 0:
                raise ValueError
            return cls(float(timeout_s), None if warn_at is None else float(warn_at), argv)
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError("a policy needs orphan_timeout_s, warn_at and on_warning") from error


class Node(abc.ABC):
    """Commands, warnings and connections of one node.

    :param number: number of the node in the job; 0: the first one
    """

    #: True if its connections come in, False if it makes them.
    is_server: bool

    def __init__(
        self, loop: asyncio.AbstractEventLoop, number: int, parameters: Parameters, environ: Mapping[str, str]
    ) -> None:
        self.loop, self.number, self.parameters = loop, number, parameters
        self.environ = environ
        self._tls_context = tls_context(parameters.certificate, parameters.key, is_server=self.is_server)
        self.job = environ.get("SLURM_JOB_ID", "0")
        self.commands = Commands(loop, os.path.expanduser("~"), command_environment(environ))
        self.policy: Policy | None = None
        self.ending: asyncio.Future[int] = loop.create_future()
        self._on_warning: asyncio.Future[int] | None = None
        self._warned_at: float | None = None

    def log(self, message: str) -> None:
        """Write a line to the output of the job."""
        log(f"node {self.number} of job {self.job}: {message}")

    def end(self, code: int, reason: str) -> None:
        """End this process. Repeatable."""
        if not self.ending.done():
            self.log(reason)
            self.ending.set_result(code)

    def tls(self) -> TlsSession:
        """Return a new session with the certificate of the job."""
        return TlsSession(self._tls_context, self.parameters.certificate, is_server=self.is_server)

    def handle_signals(self) -> None:
        """Take the signals of Slurm as warnings. Commands get the default handlers."""
        self.loop.add_signal_handler(signal.SIGCHLD, self.commands.reap)
        self.loop.add_signal_handler(signal.SIGURG, self.warn, "URG")
        self.loop.add_signal_handler(signal.SIGTERM, self.warn, "TERM")
        self.loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def set_policy(self, frame: Frame) -> None:
        """Take over the lifetime that a follower has set."""
        self.policy = Policy.parse(frame.document())

    def check(self) -> None:
        """Reap processes whose signal was lost, and warn at the time of the policy, once for each time."""
        self.commands.reap()
        warn_at = self.policy.warn_at if self.policy is not None else None
        if warn_at is not None and warn_at != self._warned_at and time.time() >= warn_at:
            self._warned_at = warn_at
            self.warn("time")

    def warn(self, cause: str) -> None:
        """Report a warning, and execute the command of the policy unless it runs already.

        :param cause: ``URG``, ``TERM`` or ``time``
        """
        self.log(f"warning ({cause})")
        if self.policy is not None and self.policy.on_warning and (self._on_warning is None or self._on_warning.done()):
            self._on_warning = self.commands.run(self.policy.on_warning)
        self.report_warning(with_document(Kind.WARNING, {"node": self.number, "cause": cause}, node=self.number))

    @abc.abstractmethod
    def report_warning(self, warning: Frame) -> None:
        """Send a warning to the followers."""


class OtherNode(Node):
    """Node that is connected to the first one and executes the commands that it passes on."""

    is_server = False

    def __init__(
        self, loop: asyncio.AbstractEventLoop, number: int, parameters: Parameters, environ: Mapping[str, str]
    ) -> None:
        super().__init__(loop, number, parameters, environ)
        self._link: Connection | None = None
        #: Result of the connection that is being tried: True once the first node has answered.
        self._answer: asyncio.Future[bool] | None = None
        self._unsent: list[Frame] = []

    async def run(self) -> int:
        """Serve until the end, and return the exit code."""
        self.handle_signals()
        joining = self.loop.create_task(self._join())
        pinged_s = self.loop.time()
        while not self.ending.done():
            await asyncio.wait({self.ending}, timeout=TICK_S)
            self.check()
            now_s = self.loop.time()
            if self._link is None:
                if joining.done():
                    joining = self.loop.create_task(self._join())
            elif now_s - self._link.received_s > DEAD_S:
                self._link.close(f"the first node was silent for {DEAD_S:g} s")
            elif now_s - pinged_s >= PING_S:
                pinged_s = now_s
                self._link.send(Frame(Kind.PING))
        joining.cancel()
        return self.ending.result()

    async def _join(self) -> None:
        """Connect to the first node."""
        deadline_s = self.loop.time() + self.parameters.join_s
        pause_s = 0.1
        while self.loop.time() < deadline_s:
            addresses = await self.loop.run_in_executor(None, resolve, names_of_first_node(self.environ))
            for address in addresses:
                for port in self.parameters.ports:
                    if self.loop.time() >= deadline_s:
                        break
                    if await self._try(address, port):
                        return
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S, 2 * pause_s)
        self.end(DISCONNECTED, f"the first node did not answer within {self.parameters.join_s:g} s")

    async def _try(self, address: str, port: int) -> bool:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.wait_for(self.loop.sock_connect(sock, (address, port)), DIAL_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, asyncio.TimeoutError):
            sock.close()
            return False
        self._answer = answer = self.loop.create_future()
        link = Connection(self.loop, sock, self.tls(), self)
        try:
            if await asyncio.wait_for(answer, DIAL_S):
                return True
        except asyncio.TimeoutError:
            pass
        link.close("another program listens there")
        return False

    def ready(self, connection: Connection) -> None:
        """Name this node."""
        connection.send(with_document(Kind.JOIN, {"host": socket.gethostname()}, node=self.number))

    def frame(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame of the first node."""
        if frame.kind == Kind.HELLO:
            self._link = connection
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(True)
            unsent, self._unsent = self._unsent, []
            for warning in unsent:
                connection.send(warning)
        elif frame.kind in TO_COMMAND:
            self.commands.handle(connection, frame)
        elif frame.kind == Kind.GONE:
            self.commands.close_peer(frame.peer)
        elif frame.kind == Kind.POLICY:
            self.set_policy(frame)
        elif frame.kind == Kind.END:
            self.end(ENDED, "the job was ended")
        elif frame.kind != Kind.PONG:
            raise FrameError(f"the first node sent a frame {frame.kind.name}")

    def closed(self, connection: Connection, reason: str) -> None:
        """Close the commands, whose followers cannot be reached."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(False)
        if connection is self._link:
            self._link = None
            self.log(f"the connection to the first node ended: {reason}")
            self.commands.close_all()

    def report_warning(self, warning: Frame) -> None:
        """Send a warning to the first node, now or once it is connected."""
        if self._link is not None:
            self._link.send(warning)
        else:
            self._unsent.append(warning)
