"""One channel: commands in, answers and streams out."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from ..checks.measurement import measure_request
from ..checks.network_checks import NetworkChecks
from ..fields import Fields, parse_object, shorten
from ..files.layout import Layout, RunFolder
from ..limits import BEAT_S, GO_WAIT_S, MAX_LINE, MAX_THREADS, POLL_S, PROTOCOL, TELEMETRY_WATER
from ..machine.host import machine_id
from ..machine.processes import boot_id, boottime, pid_namespace, program, read_proc
from ..names import WORD, Json
from ..refusal import Refused, refusal_of
from ..run.control import go, go_outcome
from ..run.launcher import Zygote, parse_report
from ..run.plan import check_context, check_plan, check_secrets
from ..run.rank_exec import exec_request
from . import long_commands, run_commands
from .outbox import Outbox, ProtocolError
from .run_commands import folder_of, read_telemetry
from .subscriptions import Subscriptions
from .upkeep import Upkeep

T = TypeVar("T")


class Follow:
    """One channel: accepts commands, answers them, streams the files of runs.

    One thread does all quick work. Commands that may take long run in their own threads. The zygote
    forks supervisors, because this process has threads.
    """

    def __init__(self, layout: Layout, zygote: Zygote, stdin: int, stdout: int) -> None:
        self.layout = layout
        self.zygote = zygote
        self.stdin = stdin
        self.output = Outbox(stdout)
        self.input = bytearray()
        self.open = True
        self.poller = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.answers: OrderedDict[str, tuple[Json, bytes]] = OrderedDict()
        #: Request id -> number of answers to send.
        self.pending: dict[str, int] = {}
        self.results: queue.SimpleQueue[tuple[str | None, Json, bytes]] = queue.SimpleQueue()
        self.threads = 0
        self.waiting_go: list[tuple[str, RunFolder, float]] = []
        self.over: set[str] = set()
        self.next_beat = self.next_progress = 0.0
        self.wake_reader, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.upkeep = Upkeep(lambda work: self._start_thread(None, work))
        self.checks = NetworkChecks(layout, self._handle, self._forget)
        self.subscriptions = Subscriptions(
            layout, self.output, handle=self._handle, forget=self._forget, recover=self.upkeep.recover
        )
        #: Commands that need this channel: those that are answered by its thread, and those that need another one.
        self.quick: dict[str, Callable[[str | None, Fields], tuple[Json, bytes] | None]] = {
            "prepare": self._prepare,
            "go": self._go,
            "telemetry": self._telemetry,
            "subscribe": self.subscriptions.subscribe,
            "unsubscribe": self.subscriptions.unsubscribe,
            "ack": self.subscriptions.acknowledge,
            "net_listen": self.checks.listen,
            "net_close": self.checks.close,
        }
        self.slow: dict[str, Callable[[Fields], Callable[[], Json]]] = {
            "preflight": self.checks.preflight,
            "net_connect": self.checks.connect,
            "net_transfer": self.checks.transfer,
            "measure": self._measure,
            "exec": self._exec,
        }

    def hello(self) -> None:
        """Write the greeting."""
        document = {
            "protocol": PROTOCOL,
            "machine_id": machine_id(),
            "boot_id": boot_id(),
            "pid_ns": pid_namespace(),
            "pid1_start_time": getattr(read_proc(1), "start_time", 0),
            "uid": os.getuid(),
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "executable": sys.executable,
            "state_dir": self.layout.state_dir,
            "boottime_s": boottime(),
            "wall_s": time.time(),
            "hostname": socket.gethostname(),
            "stores": self.layout.stores(),
        }
        line = f"DTRAIN/{PROTOCOL} {json.dumps(document, separators=(',', ':'))}\n".encode()
        self.output.waiting.append(memoryview(line))
        self.output.size += len(line)

    def run(self) -> int:
        """Serve until the control side closes the channel. Runs continue without it."""
        self.hello()
        os.set_blocking(self.stdin, False)
        self._handle(self.stdin, self._read_input)
        self._handle(self.wake_reader, self._drain_wake)
        self._handle(self.zygote.socket.fileno(), self._end)
        self.subscriptions.start()
        code = 0
        try:
            while self.open and not self.output.broken:
                self._turn()
        except ProtocolError as error:
            self.output.frame({"re": None, "ok": False, "code": "protocol", "message": str(error)})
            code = 2
        self._finish()
        return code

    def _turn(self) -> None:
        """Wait for input or a deadline, handle it, and send queued output."""
        self.output.flush()
        if self.output.waiting:
            self.poller.register(self.output.fd, select.POLLOUT)
        for fd, _ in self.poller.poll(max(0.0, self._timeout() * 1000)):
            handler = self.handlers.get(fd)
            if handler is not None:
                handler()
        if self.output.fd not in self.handlers:
            with contextlib.suppress(KeyError):
                self.poller.unregister(self.output.fd)
        self._deliver()
        self._check_go()
        self._beat()
        self.subscriptions.pump()

    def _finish(self) -> None:
        """Wait for commands in progress. The control side may have closed the channel right after sending them."""
        deadline = time.monotonic() + 20.0
        while (self.pending or self.threads) and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError, OSError):
                select.select([self.wake_reader], [], [], 0.01)
            for fd, _ in self.poller.poll(0):
                if fd != self.stdin and fd in self.handlers:
                    self.handlers[fd]()
            self._deliver()
            self._check_go()
            self.output.flush()
        deadline = time.monotonic() + 2.0
        while self.output.waiting and not self.output.broken and time.monotonic() < deadline:
            select.select([], [self.output.fd], [], 0.1)
            self.output.flush()

    def _handle(self, fd: int, handler: Callable[[], None]) -> None:
        self.handlers[fd] = handler
        self.poller.register(fd, select.POLLIN)

    def _forget(self, fd: int) -> None:
        self.handlers.pop(fd, None)
        with contextlib.suppress(KeyError, ValueError):
            self.poller.unregister(fd)

    def _timeout(self) -> float:
        """Return the seconds until the next deadline or poll."""
        now = time.monotonic()
        times = [self.next_beat - now, POLL_S]
        if self.subscriptions.of_runs:
            times.append(self.next_progress - now)
        if self.waiting_go:
            times.append(0.001)
        times += self.subscriptions.deadlines(now)
        return max(0.0, min(times))

    # Input.

    def _read_input(self) -> None:
        try:
            data = os.read(self.stdin, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        self.input += data
        *lines, rest = bytes(self.input).split(b"\n") if b"\n" in data else (bytes(self.input),)
        self.input = bytearray(rest)
        if len(self.input) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
        for line in lines:
            if line.strip():
                self._command(line)

    def _command(self, line: bytes) -> None:
        message = parse_object(line)
        name = message.get("cmd") if message else None
        key = message.get("id") if message else None
        if message is None or not isinstance(name, str):
            raise ProtocolError(f"a line that is not a command: {shorten(line[:60].decode('utf-8', 'replace'))}")
        if key is not None and (not isinstance(key, str) or len(key) > 128):
            raise ProtocolError("a request id that is not a string of at most 128 characters")
        if key is not None and key in self.answers:
            self.output.frame(*self.answers[key])
            return
        if key is not None and key in self.pending:
            self.pending[key] += 1
            return
        if key is not None:
            self.pending[key] = 1
        try:
            self._mended(lambda: self._dispatch(key, name, Fields(message)))
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            self._answer(key, refusal_of(error).answer())

    def _mended(self, work: Callable[[], T]) -> T:
        """Return the result of some work. If a folder is missing, those of ``state_dir`` are made again first.

        If that fails, the channel ends: the control side opens a new one, and its greeting names the reason.
        """
        try:
            return work()
        except (FileNotFoundError, NotADirectoryError):
            try:
                self.layout.ensure().guard()
            except (OSError, Refused) as error:
                self._leave(f"The folders of {self.layout.state_dir} cannot be made again: {refusal_of(error).message}")
                raise
            return work()

    def _leave(self, message: str) -> None:
        """End the channel after the commands in progress. The control side reads the reason and connects again."""
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
        self.open = False

    def _dispatch(self, key: str | None, name: str, fields: Fields) -> None:
        if name in self.quick:
            found = self.quick[name](key, fields)
            if found is not None:
                self._answer(key, {"ok": True, **found[0]}, found[1])
        elif name in run_commands.COMMANDS:
            answer, data = run_commands.COMMANDS[name](self.layout, fields)
            self._answer(key, {"ok": True, **answer}, data)
        elif name in self.slow:
            self._start_thread(key, self.slow[name](fields))
        elif name in long_commands.COMMANDS:
            self._start_thread(key, long_commands.COMMANDS[name](self.layout, fields))
        else:
            raise Refused("unknown_command", f"{shorten(name)} is not a command of protocol {PROTOCOL}.")

    def _start_thread(self, key: str | None, work: Callable[[], Json]) -> None:
        if self.threads >= MAX_THREADS:
            raise Refused("busy", f"{MAX_THREADS} commands run on this channel, the most allowed. Wait for an answer.")
        self.threads += 1

        def body() -> None:
            try:
                answer = {"ok": True, **self._mended(work)}
            except BaseException as error:
                answer = refusal_of(error).answer()
            self.results.put((key, answer, b""))
            with contextlib.suppress(OSError):
                os.write(self.wake_writer, b"!")

        try:
            threading.Thread(target=body, daemon=True).start()
        except RuntimeError as error:
            self.threads -= 1
            message = f"This host has no room for another thread: {error}. End processes of the account, or raise"
            raise Refused("busy", f"{message} its limit (ulimit -u).") from error

    def _end(self) -> None:
        """End the channel because the zygote is gone. The control side connects again and gets another one."""
        self._forget(self.zygote.socket.fileno())
        self.open = False

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_reader, 4096)

    def _deliver(self) -> None:
        while True:
            try:
                key, answer, data = self.results.get_nowait()
            except queue.Empty:
                return
            self.threads -= 1
            self._answer(key, answer, data)
            if self.upkeep.failures:
                self.subscriptions.report_lost(self.upkeep.failures)

    def _answer(self, key: str | None, answer: Json, data: bytes = b"") -> None:
        """Send an answer once for each copy of its request, and keep it for later copies."""
        if key is None:
            return
        frame = {"re": key, **answer}
        for _ in range(self.pending.pop(key, 1)):
            self.output.frame(frame, data)
        self.answers[key] = (frame, data)
        while len(self.answers) > 256:
            self.answers.popitem(last=False)

    # Quick commands answer, or return None and answer later.

    def _prepare(self, key: str | None, fields: Fields) -> tuple[Json, bytes] | None:
        plan = check_plan(fields.inner("plan").values)
        context = check_context(fields.values.get("context"))
        secrets = check_secrets(fields.values.get("secrets"))
        reader = self.zygote.launch(json.dumps({"plan": plan, "context": context, "secrets": secrets}).encode())
        received = bytearray()

        def read() -> None:
            try:
                chunk = os.read(reader, 1 << 16)
            except BlockingIOError:
                return
            if chunk:
                received.extend(chunk)
                return
            self._forget(reader)
            os.close(reader)
            self._answer(key, parse_report(bytes(received)))

        self._handle(reader, read)
        return None

    def _go(self, key: str | None, fields: Fields) -> tuple[Json, bytes] | None:
        run = fields.run()
        address = fields.text("master_addr", WORD)
        document = {"master_addr": address, "master_port": fields.integer("master_port", 0, 65535)}
        found = go(self.layout, run, document)
        if found is None and key is not None:
            self.waiting_go.append((key, self.layout.run(run), time.monotonic() + GO_WAIT_S))
            return None
        return found or {}, b""

    def _check_go(self) -> None:
        waiting = self.waiting_go
        self.waiting_go = []
        for key, folder, deadline in waiting:
            try:
                found = go_outcome(folder)
                if found is None and time.monotonic() > deadline:
                    raise Refused("timeout", f"Run {folder.name} did not start within {GO_WAIT_S:g} s.")
            except Refused as error:
                self._answer(key, error.answer())
                continue
            if found is None:
                self.waiting_go.append((key, folder, deadline))
            else:
                self._answer(key, {"ok": True, **found})

    def _telemetry(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        return read_telemetry(self.layout, fields, is_busy=self.output.size > TELEMETRY_WATER)

    def _exec(self, fields: Fields) -> Callable[[], Json]:
        return exec_request(folder_of(self.layout, fields), fields, lambda: self.open and not self.output.broken)

    def _measure(self, fields: Fields) -> Callable[[], Json]:
        return measure_request(self.layout, fields, lambda: self.open and not self.output.broken)

    # Heartbeats.

    def _beat(self) -> None:
        now = time.monotonic()
        with_beat = now >= self.next_beat
        if with_beat or now >= self.next_progress:
            self.next_progress = now + POLL_S
            self.subscriptions.send_progress(with_beat)
        if not with_beat:
            return
        self.next_beat = now + BEAT_S
        if not os.path.isdir(program()):
            self._leave("The folder of the supervisor was removed. The next channel installs it again.")
        alive = []
        for name in self.layout.runs():
            if name in self.over:
                continue
            folder = self.layout.run(name)
            if folder.ended():
                self.over.add(name)
            elif folder.alive():
                alive.append(name)
            else:
                self.upkeep.recover(folder)
        for subscription in self.subscriptions.of_runs.values():
            if not subscription.final and subscription.folder.ended():
                self.upkeep.restore_end(subscription.folder)
        self.subscriptions.report_lost(self.upkeep.failures)
        self.output.frame({"t": "beat", "boottime_s": boottime(), "runs": alive})
