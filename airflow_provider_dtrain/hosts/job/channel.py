"""Commands on the nodes of a job: a transport per node, and a channel per command."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence

from airflow_provider_dtrain.core.untrusted_json import parse_object
from airflow_provider_dtrain.errors import HostError, HostUnreachableError
from airflow_provider_dtrain.hosts.job.connection import JobConnection
from airflow_provider_dtrain.hosts.transport.base import Channel, Completed
from airflow_provider_dtrain.hosts.transport.run_command import STDERR_LIMIT_BYTES, complete
from airflow_provider_dtrain.hosts.wire import plain
from airflow_provider_dtrain.supervisor.serve.frames import (
    DATA_BYTES,
    FRAME_BYTES,
    WINDOW,
    Frame,
    FrameError,
    Kind,
    credit_body,
    with_document,
)

_RECEIVE_BYTES = 256 * 1024
#: Consumed bytes that are reported together.
_CREDIT_BYTES = WINDOW // 4


class JobTransport:
    """Transport to one node of a job. Its connection is shared with the other nodes.

    :param host: name under which the node is registered
    :param node: number of the node in the job
    :param connect: returns the live connection of the job, and connects until a deadline if there is none
    :param on_close: called once, when the transport is closed
    """

    def __init__(
        self, host: str, node: int, connect: Callable[[float], JobConnection], on_close: Callable[[], None]
    ) -> None:
        self.host = host
        self._node = node
        self._connect = connect
        self._on_close = on_close
        self._lock = threading.Lock()
        self._is_closed = False
        self._channels: weakref.WeakSet[JobChannel] = weakref.WeakSet()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Run a command to its end. One that takes longer than ``timeout_s`` keeps running on the node."""
        deadline = time.monotonic() + timeout_s
        channel = self._open(argv, deadline)
        try:
            return complete(self.host, channel, stdin=stdin, timeout_s=max(0.1, deadline - time.monotonic()))
        finally:
            channel.close()

    def open(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Channel:
        """Start a command and return its channel."""
        return self._open(argv, time.monotonic() + timeout_s)

    def _open(self, argv: Sequence[str], deadline: float) -> JobChannel:
        if self._is_closed:
            raise self._closed()
        connection = self._connect(deadline)
        if not connection.wait_connected(self._node, deadline):
            raise connection.failure or HostUnreachableError(
                self.host,
                f"Host '{self.host}' is node {self._node} of job '{connection.name}' and has not connected to the "
                "first node of the job in time. Check the network between the nodes, and the output of the job.",
            )
        channel = JobChannel(self.host, self._node, connection)
        try:
            channel.start(argv, deadline)
        except BaseException:
            channel.close()
            raise
        with self._lock:
            if not self._is_closed:
                self._channels.add(channel)
                return channel
        channel.close()
        raise self._closed()

    def _closed(self) -> HostUnreachableError:
        return HostUnreachableError(self.host, f"The connection to host '{self.host}' was closed on this side.")

    def close(self) -> None:
        """Close the channels of this transport. The connection closes with the last transport of the job."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()
        self._on_close()


class JobChannel:
    """Streams of one command on a node of a job."""

    def __init__(self, host: str, node: int, connection: JobConnection) -> None:
        self.node = node
        self._host = host
        self._connection = connection
        self._change = threading.Condition()
        self._writing = threading.Lock()
        self._output = bytearray()
        self._errors = bytearray()
        #: Bytes that may still be sent, and consumed bytes that have not been reported.
        self._credit = WINDOW
        self._consumed = 0
        self._errors_consumed = 0
        self._exit_code: int | None = None
        self._is_opened = self._is_ended = self._is_closed = False
        self._failure: HostError | None = None
        self._stream = connection.add(self)

    def start(self, argv: Sequence[str], deadline: float) -> None:
        """Start the command.

        :raises HostUnreachableError: the node cannot start a process, or does not answer before the deadline
        """
        opening = with_document(Kind.OPEN, {"argv": list(argv)}, node=self.node, stream=self._stream)
        if len(opening.body) > FRAME_BYTES:
            raise HostUnreachableError(self._host, f"The arguments of a command are longer than {FRAME_BYTES:,} bytes.")
        self._connection.post(opening)
        with self._change:
            while not self._is_opened:
                if self._failure is not None:
                    raise self._failure
                if (left_s := deadline - time.monotonic()) <= 0.0:
                    raise HostUnreachableError(
                        self._host, f"Host '{self._host}' did not start a command in time. Its home folder may hang."
                    )
                self._change.wait(left_s)

    # -- called by the reader thread of the connection

    def take(self, frame: Frame) -> None:
        """Handle a frame of the node."""
        if frame.node != self.node:
            raise FrameError(f"node {frame.node} answers for node {self.node}")
        with self._change:
            self._handle(frame)
            self._change.notify_all()
        if self._errors_consumed >= _CREDIT_BYTES:
            self._post(Kind.CREDIT, credit_body(Kind.STDERR, self._errors_consumed))
            self._errors_consumed = 0

    def _handle(self, frame: Frame) -> None:
        if frame.kind == Kind.STDOUT:
            if len(self._output) + self._consumed + len(frame.body) > WINDOW:
                raise FrameError("it sent more output than the window allows")
            self._output += frame.body
        elif frame.kind == Kind.STDERR:
            self._errors += frame.body
            del self._errors[:-STDERR_LIMIT_BYTES]
            self._errors_consumed += len(frame.body)
        elif frame.kind == Kind.STDOUT_EOF:
            self._is_ended = True
        elif frame.kind == Kind.CREDIT:
            self._credit = min(WINDOW, self._credit + frame.credit()[1])
        elif frame.kind == Kind.EXIT:
            self._exit_code = frame.exit_code()
        elif frame.kind == Kind.OPENED:
            self._is_opened = True
        elif frame.kind == Kind.FAILED:
            reason = plain(parse_object(frame.body, depth=2, values=10).get("message"), 300)
            self._failure = HostUnreachableError(
                self._host, f"Host '{self._host}' cannot execute a command: {reason}. Correct the cause on the host."
            )
        else:
            raise FrameError(f"a command sent a frame {frame.kind.name}")

    def cut(self, error: HostError) -> None:
        """End the streams, because the node cannot be reached further."""
        with self._change:
            if self._failure is None and not self._is_closed:
                self._failure = error
                self._errors += f"\n{error}".encode()
            self._change.notify_all()

    def abandon(self) -> None:
        """Close in a forked child without a message to the node."""
        # A thread of the parent may have held a lock.
        self._change, self._writing = threading.Condition(), threading.Lock()
        self._is_closed = True

    # -- called by the users of the channel

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Write all of ``data`` to the command's standard input."""
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        with self._writing:
            try:
                while view:
                    count = self._take_credit(min(len(view), DATA_BYTES), deadline)
                    frame = Frame(Kind.STDIN, self.node, 0, self._stream, bytes(view[:count]))
                    self._connection.post_data(frame, deadline)
                    view = view[count:]
            except OSError as error:
                reason = str(error) or "it did not read everything before the deadline"
                raise HostUnreachableError(
                    self._host, f"A command on host '{self._host}' does not accept further input: {reason}."
                ) from error

    def _take_credit(self, wanted: int, deadline: float) -> int:
        with self._change:
            while True:
                if self._is_closed or self._failure is not None:
                    raise BrokenPipeError(plain(self._failure, 300) if self._failure else "the channel is closed")
                if self._credit:
                    count = min(wanted, self._credit)
                    self._credit -= count
                    return count
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    raise TimeoutError
                self._change.wait(left_s)

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes of standard output, ``b""`` at the end, or None on a time-out."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while not self._output or self._is_closed:
                if self._is_closed or self._is_ended or self._failure is not None:
                    return b""
                if (left_s := deadline - time.monotonic()) <= 0.0:
                    return None
                self._change.wait(left_s)
            chunk = bytes(self._output[:_RECEIVE_BYTES])
            del self._output[: len(chunk)]
            self._consumed += len(chunk)
            reported, self._consumed = (self._consumed, 0) if self._consumed >= _CREDIT_BYTES else (0, self._consumed)
        if reported:
            self._post(Kind.CREDIT, credit_body(Kind.STDOUT, reported))
        return chunk

    def _post(self, kind: Kind, body: bytes = b"") -> None:
        self._connection.post(Frame(kind, self.node, 0, self._stream, body))

    def errors(self) -> bytes:
        """Return the command's standard error so far, at most the last 64 KiB."""
        with self._change:
            return bytes(self._errors)

    def exit_code(self) -> int | None:
        """Return the exit status once the command has ended, else None."""
        return self._exit_code

    def wait_exit(self, timeout_s: float) -> int | None:
        """Return the exit status, or None if the command has not ended in time."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while self._exit_code is None:
                if self._failure is not None:
                    raise HostUnreachableError(
                        self._host,
                        f"The connection to host '{self._host}' was cut while a command ran. Its exit status is "
                        f"unknown. {self._failure}",
                    )
                if (left_s := deadline - time.monotonic()) <= 0.0 or self._is_closed:
                    return None
                self._change.wait(left_s)
            return self._exit_code

    def finish_input(self) -> None:
        """Close the command's standard input. Never raises."""
        self._post(Kind.STDIN_EOF)

    def close(self) -> None:
        """Close the channel. The command reads the end of its input, and may live on. Repeatable, never raises."""
        with self._change:
            if self._is_closed:
                return
            self._is_closed = True
            self._change.notify_all()
        self._connection.remove(self._stream)
        self._post(Kind.CLOSE)
