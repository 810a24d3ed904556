"""Control side of the protocol with a host's supervisor.

Each process has one :class:`HostLink` per host: a follow channel, a thread that reads it, and a thread that writes to
it. Calls never block, so a coroutine may make them: a call queues a line and returns a future. It takes no lock, so a
signal handler may make it too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.timing import SEND_TIMEOUT_S, SILENCE_S
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    HostLostError,
    HostProtocolError,
    HostRefusedError,
    HostUnreachableError,
)
from airflow_provider_dtrain.hosts.channel import handshake
from airflow_provider_dtrain.hosts.channel.answers import check_answer
from airflow_provider_dtrain.hosts.channel.clock import HostClock
from airflow_provider_dtrain.hosts.channel.errors import refusal
from airflow_provider_dtrain.hosts.channel.transfer import FileCommands, Incoming, Outgoing
from airflow_provider_dtrain.hosts.channel.window import FlowWindow
from airflow_provider_dtrain.hosts.payload import Payload, supervisor
from airflow_provider_dtrain.hosts.transport.base import Transport
from airflow_provider_dtrain.hosts.wire import (
    Beat,
    Frame,
    FrameReader,
    LostRun,
    ProgressFrame,
    WireError,
    encode,
    fields_of,
    plain,
    shown,
)

log = logging.getLogger(__name__)

#: Number of commands that may wait for the writer before a link counts as dead.
QUEUE_LIMIT = 10_000
_TICK_S = 0.5
#: Round trips that measure the host's clocks: at the start of a channel and for a probe, one after the other; and the
#: number of beats, one each 5 s, between two further ones.
_CLOCK_SAMPLES, _CLOCK_BEATS = 5, 6
_BATCH_BYTES = 256 * 1024
#: Time for the reader to receive the end of a channel that refuses input, with the last message of its program.
_LAST_MESSAGE_S = 2.0
#: Answers in a row with a fault of the host after which a channel is not used further.
MOST_FAULTS = 3

Sink = Callable[[Frame], None]
ProgressSink = Callable[[ProgressFrame], None]


@dataclass(frozen=True)
class _Call:
    cmd: str
    answer: Future[JsonObject]
    #: Reading of the monotonic clock when the command was queued.
    sent_s: float
    timeout_s: float

    @property
    def deadline_s(self) -> float:
        return self.sent_s + self.timeout_s


class HostLink:
    """Open follow channel of one host. Thread-safe."""

    def __init__(self, transport: Transport, opened: handshake.Opened, files: FileCommands) -> None:
        self.host = transport.host
        self.hello = opened.hello
        self._clock = HostClock(opened.hello.wall_s, opened.hello.boottime_s, asked_s=opened.asked_s)
        self._beats = 0
        #: Command -> number of answers in a row that named a fault of the host.
        self._faults: dict[str, int] = {}
        #: The reader thread calls it with every beat, so it must return at once.
        self.on_beat: Callable[[Beat], None] | None = None
        self._transport = transport
        self._channel = opened.channel
        self._files = files
        self._calls: dict[str, _Call] = {}
        self._sinks: dict[str, Sink] = {}
        self._windows: dict[str, FlowWindow] = {}
        self._progress: dict[str, ProgressSink] = {}
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._failure: DtrainError | None = None
        self._dying = threading.Lock()
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._reader = threading.Thread(
            target=self._read, args=(opened.rest,), name=f"dtrain-read-{self.host}", daemon=True
        )
        self._writer = threading.Thread(target=self._write, name=f"dtrain-write-{self.host}", daemon=True)
        # Before all other commands, so that the offset is measured when the first event arrives.
        self._sample_clock(_CLOCK_SAMPLES)
        self._reader.start()
        self._writer.start()

    @classmethod
    def connect(
        cls,
        transport: Transport,
        *,
        remote_dir: str,
        state_dir: str | None,
        python: str,
        lock_dir: str | None = None,
        timeout_s: float = 30.0,
        archive: Payload | None = None,
    ) -> HostLink:
        """Return a link to a host, and install the supervisor there if it is missing. Blocks.

        The link owns ``transport`` and closes it.

        :param remote_dir: folder on the host, relative to the home directory or absolute
        :param state_dir: folder on a local disk of the host, None for the supervisor's default
        :param python: interpreter, a program name or a path
        :param lock_dir: folder for the locks of all accounts, None for the supervisor's default
        :param timeout_s: seconds for connecting and installing together
        :param archive: archive of the supervisor; default: the supervisor of this package
        :raises EnvironmentMissingError: the host has no interpreter, or one that is too old
        :raises HostError: the host cannot be reached, or breaks the protocol
        """
        archive = supervisor() if archive is None else archive
        files = FileCommands(
            transport=transport,
            python=from_home(python),
            remote_dir=from_home(remote_dir),
            state_dir=state_dir,
            lock_dir=lock_dir,
            digest=archive.digest,
        )
        try:
            opened = handshake.follow(files, archive, deadline=time.monotonic() + timeout_s)
        except BaseException:
            transport.close()
            raise
        return cls(transport, opened, files)

    @property
    def clock_offset_s(self) -> float:
        """The host's wall clock minus that of the control side, seconds, 0 if the host has not sent its clock."""
        return self._clock.best.offset_s or 0.0

    @property
    def clock_uncertainty_s(self) -> float:
        """Seconds by which the offsets may be wrong, in either direction."""
        return self._clock.best.uncertainty_s

    @property
    def boot_offset_s(self) -> float:
        """CLOCK_BOOTTIME of the host minus Unix time here, seconds. The host's wall clock does not matter."""
        return self._clock.best.boot_offset_s

    def measure_clock(self, *, timeout_s: float) -> None:
        """Measure the host's clocks by several round trips now. Blocks.

        :raises HostError: the host does not answer
        """
        for _ in range(_CLOCK_SAMPLES):
            self.call("clock", timeout_s=timeout_s).result(timeout_s + 5.0)

    def _sample_clock(self, count: int) -> None:
        """Measure the clocks by some round trips, one after the other, without waiting."""

        def next_one(done: Future[JsonObject]) -> None:
            if count > 1 and done.exception() is None:
                self._sample_clock(count - 1)

        self.call("clock").add_done_callback(next_one)

    @property
    def alive(self) -> bool:
        """True while this side knows of no failure of the channel."""
        return self._failure is None

    def call(self, cmd: str, /, *, timeout_s: float = 30.0, **args: Any) -> Future[JsonObject]:
        """Send a command and return a future for the host's answer. Never blocks.

        An answer with raw bytes has them under ``data``.

        :param timeout_s: seconds until the future fails; the link stays open. For ``net_connect``, the
            host gets this time less a margin. For a command with ``wait_s``, the time is at least
            ``wait_s`` plus 10 s
        :raises: nothing here. The future raises SlotBusyError, HostLostError or HostRefusedError for
            a refusal, and HostUnreachableError for a dead channel or a missing answer
        """
        if cmd == "net_connect":
            args.setdefault("timeout_s", max(timeout_s - 2.0, timeout_s / 2))
        timeout_s = max(timeout_s, float(args.get("wait_s", 0.0)) + 10.0) if "wait_s" in args else timeout_s
        answer: Future[JsonObject] = Future()
        key = f"{self._prefix}.{next(self._numbers)}"
        try:
            line = encode({"id": key, "cmd": cmd, **args})
        except (DtrainError, ValueError, TypeError) as error:
            answer.set_exception(error)
            return answer
        self._calls[key] = _Call(cmd, answer, time.monotonic(), timeout_s)
        self._post(line)
        if self._failure is not None:
            self._fail(key, self._failure)
        return answer

    def subscribe(
        self,
        run: str,
        offsets: Mapping[str, int],
        sink: Sink,
        *,
        logs: str = "rank0",
        on_progress: ProgressSink | None = None,
        streams: Collection[str] | None = None,
    ) -> Future[JsonObject]:
        """Subscribe to a run's streams from the given offsets. Never blocks.

        A run has one subscriber per channel. A former one gets a frame ``lost``, as if its channel had died: a follower
        and recovery in one process may both want the run, and the one whose watch is outdated leaves.

        :param offsets: stream -> first byte to send; a stream without an offset starts at 0
        :param sink: the reader thread calls it with each frame, so it must return at once. When the
            channel dies, it gets one frame ``lost``
        :param logs: ``rank0``, ``all`` or ``none``
        :param on_progress: the reader thread calls it with the progress of the ranks, at each beat and once a second
            while a rank is stalled
        :param streams: names of the run's streams on this host; a frame of another stream breaks the protocol.
            None = any
        """
        # Frames without an acknowledgement are kept in memory, so the host may not exceed its window.
        self._windows[run] = FlowWindow(streams)
        former = self._sinks.get(run)
        self._sinks[run] = sink
        if former is not None:
            taken = HostUnreachableError(self.host, f"Another follower of this process follows run {run} now.")
            self._deliver(former, Frame(t="lost", run=run, reason=str(taken), error=taken))
        self._progress.pop(run, None)
        if on_progress is not None:
            self._progress[run] = on_progress
        answer = self.call("subscribe", run=run, offsets=dict(offsets), logs=logs)
        answer.add_done_callback(lambda done: self._forget_refused(run, sink, done))
        return answer

    def _forget_refused(self, run: str, sink: Sink, done: Future[JsonObject]) -> None:
        if (done.cancelled() or done.exception()) and self._sinks.get(run) is sink:
            self._sinks.pop(run, None)
            self._windows.pop(run, None)

    def ack(self, run: str, stream: str, offset: int) -> None:
        """Acknowledge to the host that all bytes before ``offset`` have been processed."""
        if (window := self._windows.get(run)) is not None:
            window.ack(stream, offset)
        self._post(encode({"cmd": "ack", "run": run, "stream": stream, "offset": offset}))

    def unsubscribe(self, run: str, sink: Sink | None = None) -> None:
        """Stop the frames of a run.

        :param sink: do so only while this sink receives the frames, not after another subscriber took over
        """
        if sink is not None and self._sinks.get(run) is not sink:
            return
        self._progress.pop(run, None)
        self._windows.pop(run, None)
        if self._sinks.pop(run, None) is not None:
            self.call("unsubscribe", run=run)

    def renew(self, runs: Iterable[str], boottime_s: float, orphan_timeout_s: float) -> None:
        """Answer a beat, after the renewal is committed in the store, to renew the leases of runs.

        :param boottime_s: the clock reading in the beat
        """
        document = {"cmd": "renew", "boottime_s": boottime_s, "runs": list(runs), "orphan_timeout_s": orphan_timeout_s}
        self._post(encode(document))

    def send_archive(self, kind: str, digest: str, content: bytes) -> None:
        """Upload an archive into the host's ``payloads`` or ``libraries``. Blocks."""
        self._files.send_archive(kind, digest, content)

    def argv(self, role: str, *args: str) -> list[str]:
        """Return the command for a role of the supervisor on the host, without a folder for runs."""
        return self._files.argv(role, *args, state=False)

    def fetching(self, run: str, relpath: str) -> AbstractContextManager[Incoming]:
        """Yield a tar of a path below a run's folder as a file that is read in pieces as it arrives. Blocks."""
        return self._files.fetching(run, relpath)

    def outputs(
        self, run: str, *, known: Mapping[str, str], limit_bytes: int, limit_files: int, library_only: bool = False
    ) -> AbstractContextManager[Incoming]:
        """Yield a tar of the files that the ranks of a run wrote or changed, in pieces as it arrives. Blocks."""
        return self._files.outputs(
            run, known=known, limit_bytes=limit_bytes, limit_files=limit_files, library_only=library_only
        )

    def putting(self, run: str, relpath: str) -> AbstractContextManager[Outgoing]:
        """Yield a file for writing a tar, which the host unpacks as for :meth:`put`. Blocks."""
        return self._files.putting(run, relpath)

    def close(self) -> None:
        """Close the channel and the connection. Repeatable, never raises."""
        self._die(HostUnreachableError(self.host, f"The channel to host '{self.host}' was closed on this side."))
        for thread in (self._reader, self._writer):
            if thread is not threading.current_thread():
                thread.join(timeout=2.0)

    def _post(self, line: bytes) -> None:
        if self._outbox.qsize() < QUEUE_LIMIT:
            self._outbox.put(line)
            return
        self._die(
            HostUnreachableError(
                self.host,
                f"Host '{self.host}' does not read commands: {QUEUE_LIMIT} commands wait. Its follow process hangs.",
            )
        )

    def _write(self) -> None:
        try:
            while (line := self._outbox.get()) is not None:
                self._channel.send(self._batch(line), timeout_s=SEND_TIMEOUT_S)
        except HostError as error:
            # If the program has ended, the reader knows its last message, and ends the link with it.
            self._reader.join(_LAST_MESSAGE_S)
            self._die(error)
        except Exception as error:
            self._die(HostUnreachableError(self.host, f"The channel to host '{self.host}' broke: {error!r}."))

    def _batch(self, first: bytes) -> bytes:
        """Return the waiting lines in one piece, since each write is a packet of its own."""
        lines = [first]
        size = len(first)
        with contextlib.suppress(Empty):
            while size < _BATCH_BYTES:
                line = self._outbox.get_nowait()
                if line is None:
                    self._outbox.put(None)
                    break
                lines.append(line)
                size += len(line)
        return b"".join(lines)

    def _read(self, rest: bytes) -> None:
        try:
            self._pump(rest)
        except HostError as error:
            self._die(error)
        except WireError as error:
            self._die(HostProtocolError(self.host, f"Host '{self.host}' broke the protocol: {error}"))
        except Exception as error:
            log.exception("Reading from host '%s' failed", self.host)
            self._die(HostProtocolError(self.host, f"Data from host '{self.host}' could not be processed: {error!r}"))

    def _pump(self, chunk: bytes | None) -> None:
        frames = FrameReader()
        received_s = time.monotonic()
        while self._failure is None:
            if chunk:
                received_s = time.monotonic()
                for document, raw in frames.feed(chunk):
                    self._dispatch(document, raw)
            self._expire()
            # Only an empty channel is silent: after a pause of this process, the host's bytes are still waiting.
            if chunk is None and time.monotonic() - received_s > SILENCE_S:
                raise HostUnreachableError(
                    self.host,
                    f"Host '{self.host}' was silent for {SILENCE_S:g} s, but it should send a beat every 5 s. "
                    "The network is cut, or its follow process was stopped.",
                )
            chunk = self._channel.receive(timeout_s=_TICK_S)
            if chunk == b"":
                raise handshake.ended(self.host, self._channel)

    def _dispatch(self, document: JsonObject, raw: bytes) -> None:
        if "re" in document:
            self._answer(document, raw)
            return
        kind = document.get("t")
        if kind == "beat":
            self._beat(document)
        elif kind == "progress":
            progress = ProgressFrame.parse(document, self.host)
            self._deliver(self._progress.get(progress.run), progress)
        elif kind == "gone":
            lost_run = fields_of(document, LostRun, "a frame")
            run = lost_run["run"]
            lost = HostLostError(
                self.host, f"Host '{self.host}' has lost run {plain(run)}: {plain(lost_run['reason'])}."
            )
            self._deliver(self._sinks.get(run), Frame(t="lost", run=run, reason=str(lost), error=lost))
        elif kind in ("data", "gap"):
            frame = Frame.parse(document, raw)
            if (window := self._windows.get(frame.run or "")) is not None:
                window.take(frame)
            self._deliver(self._sinks.get(frame.run or ""), frame)
        else:
            raise WireError(f"a frame of unknown kind {shown(str(kind).encode())!r}")

    def _answer(self, document: JsonObject, raw: bytes) -> None:
        key = document.pop("re")
        call = self._calls.pop(key, None) if isinstance(key, str) else None
        ok = document.pop("ok", None)
        if call is None and (not isinstance(key, str) or not key.startswith(self._prefix)):
            raise WireError(f"an answer to an unknown command: {plain(document.get('message', key), 200)}")
        if call is None:
            return  # The answer came after its deadline.
        if ok is not True:
            error = refusal(self.host, call.cmd, document)
            _settle(call.answer, error=error)
            self._count_fault(call.cmd, error)
            return
        self._faults.pop(call.cmd, None)
        try:
            check_answer(call.cmd, document)
        except WireError as error:
            # The line is complete, so only this answer is rejected and the link stays open.
            problem = HostProtocolError(self.host, f"Host '{self.host}' broke the protocol: {error}")
            _settle(call.answer, error=problem)
            return
        if "bytes" in document:
            document["data"] = raw
        if call.cmd == "clock":
            self._clock.take(document["wall_s"], document["boottime_s"], asked_s=call.sent_s)
        _settle(call.answer, result=document)

    def _count_fault(self, cmd: str, error: HostError) -> None:
        """End the channel after some equal faults in a row: a new process on the host may be free of the cause."""
        if not isinstance(error, HostRefusedError) or error.code not in ("os_error", "internal"):
            self._faults.pop(cmd, None)
            return
        self._faults[cmd] = self._faults.get(cmd, 0) + 1
        if self._faults[cmd] >= MOST_FAULTS:
            message = f"{error} It answered so {MOST_FAULTS} times in a row, so the channel is opened anew."
            self._die(HostUnreachableError(self.host, message))

    def _beat(self, document: JsonObject) -> None:
        beat = fields_of(document, Beat, "a beat")
        self._beats += 1
        if self._beats % _CLOCK_BEATS == 0:
            self._sample_clock(1)
        if self.on_beat is not None:
            try:
                self.on_beat(beat)
            except Exception:
                log.exception("A beat of host '%s' could not be handled", self.host)

    def _deliver(self, sink: Callable[[Any], None] | None, frame: Frame | ProgressFrame) -> None:
        if sink is None:
            return
        try:
            sink(frame)
        except Exception:
            log.exception("A frame of run %s from host '%s' could not be handled", frame.run, self.host)

    def _expire(self) -> None:
        if not self._calls:
            return
        now_s = time.monotonic()
        for key, call in list(self._calls.items()):
            if now_s > call.deadline_s:
                message = f"Host '{self.host}' did not answer '{call.cmd}' in time ({call.timeout_s:g} s)."
                self._fail(key, HostUnreachableError(self.host, message))

    def _fail(self, key: str, error: DtrainError) -> None:
        call = self._calls.pop(key, None)
        if call is not None:
            _settle(call.answer, error=error)

    def _die(self, error: HostError) -> None:
        # The lock must not block: another thread may execute this method when close() is called.
        if not self._dying.acquire(blocking=False):
            return
        self._failure = error
        for key in list(self._calls):
            self._fail(key, error)
        while self._sinks:
            run, sink = self._sinks.popitem()
            self._deliver(sink, Frame(t="lost", run=run, reason=str(error), error=error))
        # Close the connection first: if it is cut, closing the channel in an orderly way could block.
        self._transport.close()
        self._channel.close()
        self._outbox.put(None)


def _settle(answer: Future[JsonObject], *, result: JsonObject | None = None, error: Exception | None = None) -> None:
    # The waiting caller may cancel the future at the same moment.
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result or {})


def from_home(path: str) -> str:
    """Return a path relative to the home directory, in which commands start."""
    return path.removeprefix("~/") if path != "~" else "."
