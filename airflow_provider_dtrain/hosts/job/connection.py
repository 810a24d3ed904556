"""Follower's end of the connection to the first node of a job."""

from __future__ import annotations

import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.timing import JOB_PING_S, SEND_TIMEOUT_S, SILENCE_S
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, parse_object
from airflow_provider_dtrain.errors import (
    HostAuthError,
    HostError,
    HostKeyError,
    HostProtocolError,
    HostUnreachableError,
)
from airflow_provider_dtrain.hosts.job.byte_stream import ByteStream
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.wire import plain, shown
from airflow_provider_dtrain.supervisor.serve.frames import (
    PROTOCOL,
    WARNINGS_LIMIT,
    Decoder,
    Frame,
    FrameError,
    Kind,
)
from airflow_provider_dtrain.supervisor.serve.tls import TlsSession, tls_context

#: Bytes that wait for the network above which data of commands is not queued.
QUEUE_BYTES = 1 << 20
#: Most nodes of a job, and longest name of one.
_NODES_LIMIT, _NAME_LIMIT = 16_384, 255
_TICK_S = 1.0
#: Seconds for queued bytes when the connection is closed.
_FLUSH_S = 2.0


class StreamUser(Protocol):
    """Receiver of the frames of one command."""

    #: Number of its node.
    node: int

    def take(self, frame: Frame) -> None:
        """Handle a frame. The reader thread calls it, so it must return at once.

        :raises FrameError: the node breaks the protocol
        """

    def cut(self, error: HostError) -> None:
        """Handle the end of the connection, or of the node."""

    def abandon(self) -> None:
        """Close in a forked child without a message to the node."""


@dataclass(frozen=True, kw_only=True)
class JobEvents:
    """Callbacks about a job. The reader thread calls them, so they must return at once."""

    #: Node and cause of a warning: ``URG`` (Slurm's warning), ``TERM`` (preemption, limit, cancel) or ``time``.
    on_warning: Callable[[int, str], None] = lambda node, cause: None
    #: Node whose connection to the first node has ended.
    on_lost: Callable[[int], None] = lambda node: None


@dataclass(kw_only=True)
class JobNodes:
    """Nodes of a job as the first node reports them."""

    count: int = 0
    #: Node -> its host name, for nodes that are connected.
    hosts: dict[int, str] = field(default_factory=dict)


class JobConnection:
    """Open connection to the first node of a job. Thread-safe.

    A thread reads and a thread writes, so a caller never waits for the network longer than its deadline.

    :param name: name of the job in messages
    :param stream: bytes to the first node; belongs to the connection
    :raises HostUnreachableError: no answer before the deadline
    :raises HostKeyError: another program answers
    :raises HostAuthError: the first node does not accept the certificate
    :raises HostProtocolError: the answer is neither TLS nor of this protocol
    """

    def __init__(
        self, name: str, stream: ByteStream, identity: JobIdentity, events: JobEvents, *, deadline: float
    ) -> None:
        self.name = name
        self.nodes = JobNodes()
        self._stream = stream
        self._events = events
        context = tls_context(identity.certificate, identity.key, is_server=False)
        self._tls = TlsSession(context, identity.certificate, is_server=False)
        self._decoder = Decoder()
        #: Guards the session and the outgoing bytes.
        self._change = threading.Condition()
        self._outgoing = bytearray()
        self._users: dict[int, StreamUser] = {}
        self._numbers = itertools.count(1)
        #: Pings whose answers are awaited.
        self._awaited: set[bytes] = set()
        self._warnings = 0
        self.failure: HostError | None = None
        self._dying = threading.Lock()
        self._begin(deadline)
        self._reader = threading.Thread(target=self._read, name=f"dtrain-job-read-{name}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"dtrain-job-write-{name}", daemon=True)
        self._reader.start()
        self._writer.start()

    # -- the first frames

    def _begin(self, deadline: float) -> None:
        """Shake hands, and receive the greeting."""
        first = b""
        try:
            self._tls.feed(b"")
            self._send_output(deadline)
            while True:
                data = self._stream.receive(timeout_s=max(0.0, deadline - time.monotonic()))
                if not data:
                    raise self._no_answer(data, first)
                first = first or data
                was_ready = self._tls.is_ready
                content = self._tls.feed(data)
                if self._tls.is_ready and not was_ready:
                    self._tls.write(Frame(Kind.FOLLOW).encode())
                self._send_output(deadline)
                for frame in self._decoder.frames(content):
                    if not self.nodes.count:
                        self._greet(frame)
                    else:
                        self._dispatch(frame)
                if self.nodes.count:
                    return
        except ssl.SSLError as error:
            raise self._not_ours(error, first) from error
        except (FrameError, UntrustedInputError) as error:
            raise self._breach(error) from error

    def _send_output(self, deadline: float) -> None:
        if output := self._tls.output():
            self._stream.send(output, timeout_s=max(0.1, deadline - time.monotonic()))

    def _greet(self, frame: Frame) -> None:
        if frame.kind != Kind.HELLO:
            raise FrameError(f"the first frame is {frame.kind.name}")
        document = _document(frame)
        if document.get("protocol") != PROTOCOL:
            raise FrameError(f"protocol must be {PROTOCOL}, got {document.get('protocol')!r}")
        hosts, count = document.get("hosts"), document.get("nodes")
        if not isinstance(hosts, dict) or not isinstance(count, int) or not 0 < count <= _NODES_LIMIT:
            raise FrameError("the greeting lacks nodes or hosts")
        self.nodes.hosts = {_node(number): _host(host) for number, host in hosts.items()}
        self.nodes.count = count
        warnings = document.get("warnings")
        for one in warnings if isinstance(warnings, list) else []:
            self._warn(one)

    def _no_answer(self, data: bytes | None, first: bytes) -> HostError:
        if data is None:
            how = f"sent nothing further in time. Received: '{shown(first)}'" if first else "sent nothing in time"
        else:
            how = f"closed the connection{' in the middle of the handshake' if first else ' at once'}"
        return HostUnreachableError(
            self.name, f"The first node of job '{self.name}' {how}. Another program listens there, or the node is busy."
        )

    def _not_ours(self, error: ssl.SSLError, first: bytes) -> HostError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return HostKeyError(
                self.name,
                f"Another program or machine answers in place of job '{self.name}': it presents another certificate.",
            )
        if "ALERT" in str(error.reason or ""):
            return HostAuthError(
                self.name,
                f"The first node of job '{self.name}' refuses the certificate of the job ({plain(error, 200)}). "
                "Another job listens there.",
            )
        return HostProtocolError(
            self.name, f"The first node of job '{self.name}' does not speak TLS, it sent '{shown(first)}'."
        )

    # -- users

    @property
    def is_alive(self) -> bool:
        """True while this side knows of no failure."""
        return self.failure is None

    def add(self, user: StreamUser) -> int:
        """Return the number of a new stream, whose frames go to ``user``."""
        number = next(self._numbers)
        self._users[number] = user
        if self.failure is not None:
            user.cut(self.failure)
        return number

    def remove(self, stream: int) -> None:
        """Forget a stream. Frames that are on their way are dropped."""
        self._users.pop(stream, None)

    def post(self, frame: Frame) -> None:
        """Queue a frame. Never blocks on the network."""
        with self._change:
            if self.failure is None:
                self._tls.write(frame.encode())
                self._outgoing += self._tls.output()
                self._change.notify_all()

    def post_data(self, frame: Frame, deadline: float) -> None:
        """Queue a frame with data once there is room.

        :raises TimeoutError: there is none before the deadline
        """
        with self._change:
            while len(self._outgoing) > QUEUE_BYTES and self.failure is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    raise TimeoutError
                self._change.wait(left_s)
        self.post(frame)

    def confirm(self, deadline: float) -> None:
        """Wait until the first node has handled all frames that were queued before.

        :raises HostError: the connection ended
        :raises TimeoutError: no answer before the deadline
        """
        token = next(self._numbers).to_bytes(8, "big")
        self._awaited.add(token)
        self.post(Frame(Kind.PING, body=token))
        with self._change:
            while token in self._awaited:
                if self.failure is not None:
                    raise self.failure
                if (left_s := deadline - time.monotonic()) <= 0.0:
                    self._awaited.discard(token)
                    raise TimeoutError
                self._change.wait(left_s)

    def wait_connected(self, node: int, deadline: float) -> bool:
        """Wait until a node is connected to the first one, and return whether it is."""
        with self._change:
            while node not in self.nodes.hosts and self.failure is None:
                if (left_s := deadline - time.monotonic()) <= 0.0:
                    return False
                self._change.wait(left_s)
            return node in self.nodes.hosts

    def wait_closed(self, deadline: float) -> bool:
        """Wait for the end of the connection, and return whether it came."""
        with self._change:
            while self.failure is None and (left_s := deadline - time.monotonic()) > 0.0:
                self._change.wait(left_s)
            return self.failure is not None

    def close(self) -> None:
        """Send what is queued, and close the connection. Repeatable, never raises."""
        # A socket that is closed with unread bytes discards what it has not sent.
        if self.failure is None and threading.current_thread() is not self._reader:
            with contextlib.suppress(HostError, TimeoutError):
                self.confirm(time.monotonic() + _FLUSH_S)
        self._die(HostUnreachableError(self.name, f"The connection to job '{self.name}' was closed on this side."))

    def abandon(self) -> None:
        """Close the descriptor in a forked child without a message to the other side."""
        self.failure = HostUnreachableError(self.name, f"The connection to job '{self.name}' belongs to the parent.")
        # A thread of the parent may have held a lock.
        self._change, self._dying = threading.Condition(), threading.Lock()
        for user in list(self._users.values()):
            user.abandon()
        abandon = getattr(self._stream, "abandon", None)
        if abandon is not None:
            abandon()

    # -- threads

    def _write(self) -> None:
        pinged_s = time.monotonic()
        while self.failure is None:
            with self._change:
                if not self._outgoing:
                    self._change.wait(_TICK_S)
                if time.monotonic() - pinged_s >= JOB_PING_S:
                    pinged_s = time.monotonic()
                    self._tls.write(Frame(Kind.PING).encode())
                    self._outgoing += self._tls.output()
                data = bytes(self._outgoing)
            if not data:
                continue
            try:
                self._stream.send(data, timeout_s=SEND_TIMEOUT_S)
            except HostError as error:
                self._die(self._lost(plain(error, 300)))
            with self._change:
                del self._outgoing[: len(data)]
                self._change.notify_all()

    def _read(self) -> None:
        received_s = time.monotonic()
        try:
            while self.failure is None:
                data = self._stream.receive(timeout_s=_TICK_S)
                if data is None:
                    if time.monotonic() - received_s > SILENCE_S:
                        raise self._lost(f"it was silent for {SILENCE_S:g} s")
                    continue
                if not data:
                    raise self._lost("the other side closed it")
                received_s = time.monotonic()
                self._take(data)
        except (FrameError, UntrustedInputError) as error:
            self._die(self._breach(error))
        except ssl.SSLError as error:
            self._die(self._lost(plain(error, 200)))
        except HostError as error:
            self._die(error)

    def _take(self, data: bytes) -> None:
        with self._change:
            content = self._tls.feed(data)
            if output := self._tls.output():
                self._outgoing += output
                self._change.notify_all()
        for frame in self._decoder.frames(content):
            self._dispatch(frame)
        if self._tls.is_ended:
            raise self._lost("the other side ended it")

    def _dispatch(self, frame: Frame) -> None:
        user = self._users.get(frame.stream) if frame.stream else None
        if user is not None:
            user.take(frame)
        elif frame.kind == Kind.PONG:
            self._pong(frame.body)
        elif frame.kind == Kind.WARNING:
            self._warn(_document(frame))
        elif frame.kind == Kind.JOINED:
            document = _document(frame)
            with self._change:
                self.nodes.hosts[_node(document.get("node"))] = _host(document.get("host"))
                self._change.notify_all()
        elif frame.kind == Kind.LOST:
            self._lose(_node(_document(frame).get("node")))
        elif not frame.stream:
            raise FrameError(f"the first node sent a frame {frame.kind.name}")

    def _pong(self, token: bytes) -> None:
        with self._change:
            self._awaited.discard(token)
            self._change.notify_all()

    def _warn(self, document: Any) -> None:
        cause = document.get("cause") if isinstance(document, dict) else None
        if cause not in ("URG", "TERM", "time"):
            raise FrameError(f"a warning has the cause {shown(str(cause).encode())}")
        self._warnings += 1
        if self._warnings > WARNINGS_LIMIT + 10 * self.nodes.count:
            raise FrameError(f"it sent {self._warnings} warnings")
        self._events.on_warning(_node(document.get("node")), cause)

    def _lose(self, node: int) -> None:
        with self._change:
            self.nodes.hosts.pop(node, None)
        error = HostUnreachableError(
            self.name, f"Node {node} of job '{self.name}' is no longer connected to the first node of the job."
        )
        for stream, user in list(self._users.items()):
            if user.node == node:
                self._users.pop(stream, None)
                user.cut(error)
        self._events.on_lost(node)

    # -- the end

    def _die(self, error: HostError) -> None:
        with self._dying:
            if self.failure is not None:
                return
            self.failure = error
        for user in list(self._users.values()):
            user.cut(error)
        with self._change:
            self._change.notify_all()
        self._stream.close()

    def _lost(self, reason: str) -> HostUnreachableError:
        return HostUnreachableError(
            self.name,
            f"The connection to job '{self.name}' was cut: {reason}. The job has ended, its first node went down, or "
            "the network is cut.",
        )

    def _breach(self, error: Exception) -> HostProtocolError:
        return HostProtocolError(self.name, f"A node of job '{self.name}' breaks the protocol: {plain(error, 300)}")


def _document(frame: Frame) -> JsonObject:
    return parse_object(frame.body, depth=4, values=100_000)


def _node(number: Any) -> int:
    if isinstance(number, str) and number.isdecimal() and len(number) < 6:
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _NODES_LIMIT:
        raise FrameError("a number of a node is wrong")
    return number


def _host(name: Any) -> str:
    if not isinstance(name, str) or len(name) > _NAME_LIMIT:
        raise FrameError("a name of a node is wrong")
    return name
