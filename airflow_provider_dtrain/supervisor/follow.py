"""One channel: commands in, answers and streams out."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import select
import shutil
import socket
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from .control import decide, go, go_outcome, renew
from .fencing import fence, recover, restore_end, stop
from .fields import Fields, parse_object, shorten
from .files import write_json
from .garbage import collect, remove_checkpoints
from .host import machine_id
from .launcher import Zygote, parse_report
from .layout import Layout, RunFolder
from .limits import (
    BEAT_S,
    COLLECT_LIMIT,
    DECISIONS_LIMIT,
    FENCE_WAIT_S,
    GO_WAIT_S,
    HIGH_WATER,
    LOOK_S,
    MAX_LINE,
    MAX_THREADS,
    PROTOCOL,
    TELEMETRY_BYTES,
    TELEMETRY_WATER,
)
from .log_search import run_match
from .names import (
    ARCHIVE_NAME,
    CHECKPOINT_NAME,
    DECISION,
    DEVICE,
    DIGEST,
    KINDS,
    MEASUREMENTS,
    READABLE,
    RUN_NAME,
    RUNG,
    STREAM,
    WORD,
    Json,
)
from .network import candidates
from .outbox import Output, ProtocolError
from .plan import check_plan, check_secrets
from .probe import preflight, probe
from .processes import boot_id, boottime, find_process, open_pidfd, pid_namespace, read_proc
from .progress import Watcher
from .rank_exec import exec_request
from .refusal import Refused, refusal_of
from .segments import read_measurements
from .sockets import addresses_to_listen_on, connect_all, open_listeners
from .stacks import stacks_request
from .status import status
from .streams import Subscription, read_log


class Follow:
    """One channel: accepts commands, answers them, streams the files of runs.

    One thread does all quick work. Commands that may take long run in their own threads. The zygote
    forks supervisors, because this process has threads.
    """

    def __init__(self, layout: Layout, zygote: Zygote, stdin: int, stdout: int) -> None:
        self.layout = layout
        self.zygote = zygote
        self.stdin = stdin
        self.output = Output(stdout)
        self.input = bytearray()
        self.open = True
        self.poller = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.answers: OrderedDict[str, tuple[Json, bytes]] = OrderedDict()
        #: Request id -> number of answers to send.
        self.pending: dict[str, int] = {}
        self.results: queue.SimpleQueue[tuple[str | None, Json, bytes]] = queue.SimpleQueue()
        self.threads = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.waiting_go: list[tuple[str, RunFolder, float]] = []
        self.listeners: dict[str, list[socket.socket]] = {}
        self.shared_checks: dict[str, set[str]] = {}
        self.pidfds: dict[str, int] = {}
        self.recovering: set[str] = set()
        self.over: set[str] = set()
        self.next_beat = self.next_progress = 0.0
        self.watcher = Watcher()
        self.idle_s = 0.02
        self.next_look = 0.0
        self.wake_reader, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

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
        if self.watcher.fd >= 0:
            self._handle(self.watcher.fd, self._note_changes)
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
        self._look_at_go()
        self._beat()
        self._pump()

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
            self._look_at_go()
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
        times = [self.next_beat - now, LOOK_S]
        if self.subscriptions:
            times.append(self.next_progress - now)
        if self.waiting_go:
            times.append(0.001)
        room = self.output.size < HIGH_WATER
        for run, subscription in self.subscriptions.items():
            if subscription.complete:
                continue
            if subscription.dirty and room:
                times.append(subscription.not_before - now)
            if run in self.watcher.blind:
                times.append(self.next_look - now)
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
            self._dispatch(key, name, Fields(message))
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            self._answer(key, refusal_of(error).answer())

    def _dispatch(self, key: str | None, name: str, fields: Fields) -> None:
        quick = self.QUICK.get(name)
        slow = self.SLOW.get(name)
        if quick is not None:
            found = quick(self, key, fields)
            if found is not None:
                self._answer(key, {"ok": True, **found[0]}, found[1])
        elif slow is not None:
            self._start_thread(key, slow(self, fields))
        else:
            raise Refused("unknown_command", f"{shorten(name)} is not a command of protocol {PROTOCOL}.")

    def _start_thread(self, key: str | None, work: Callable[[], Json]) -> None:
        if self.threads >= MAX_THREADS:
            raise Refused("busy", f"{MAX_THREADS} commands run on this channel, the most allowed. Wait for an answer.")
        self.threads += 1

        def body() -> None:
            try:
                answer = {"ok": True, **work()}
            except BaseException as error:
                answer = refusal_of(error).answer()
            self.results.put((key, answer, b""))
            with contextlib.suppress(OSError):
                os.write(self.wake_writer, b"!")

        try:
            threading.Thread(target=body, daemon=True).start()
        except RuntimeError as error:
            self.threads -= 1
            words = f"This host has no room for another thread: {error}. End processes of the account, or raise"
            raise Refused("busy", f"{words} its limit (ulimit -u).") from error

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
        secrets = check_secrets(fields.values.get("secrets"))
        reader = self.zygote.launch(json.dumps({"plan": plan, "secrets": secrets}).encode())
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

    def _look_at_go(self) -> None:
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

    def _stop(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        return stop(self.layout, fields.run(), fields.number("grace_s", 0, 86400, default=None)), b""

    def _request_stop(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self._folder(fields)
        if not folder.has("stop_requested"):
            write_json(folder.file("stop_requested"), {"at": time.time()}, durable=False)
        folder.ring()
        return {}, b""

    def _decide(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        inner = fields.inner("decisions")
        if len(inner.values) > DECISIONS_LIMIT or not all(RUNG.fullmatch(str(rung)) for rung in inner.values):
            raise inner.bad("", f"must have at most {DECISIONS_LIMIT} keys, each the number of a rung")
        decisions = {str(rung): inner.text(rung, DECISION, limit=16) for rung in inner.values}
        return decide(self._folder(fields), fields.integer("token", 0, 1 << 62), decisions), b""

    def _folder(self, fields: Fields) -> RunFolder:
        folder = self.layout.run(fields.run())
        if not folder.exists or folder.plan() is None:
            raise Refused("unknown_run", f"Run {folder.name} is not known on this host.")
        return folder

    def _subscribe(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self._folder(fields)
        inner = fields.inner("offsets", default={})
        if len(inner.values) > 8192 or not all(STREAM.fullmatch(str(name)) for name in inner.values):
            raise inner.bad("", "must have at most 8192 keys, each the name of a stream")
        offsets = {name: inner.integer(name, 0, 1 << 62) for name in inner.values}
        logs = fields.text("logs", re.compile("rank0|all|none"), default="rank0")
        plan = folder.plan() or {}
        self._leave(folder.name)
        subscription = Subscription(folder, plan, offsets, logs)
        self.subscriptions[folder.name] = subscription
        self.watcher.add(folder.name, folder.path)
        for rank in plan["ranks"]:
            self.watcher.add(folder.name, folder.file(f"rank{rank['rank']}"))
        self._watch_supervisor(folder)
        return {}, b""

    def _watch_supervisor(self, folder: RunFolder) -> None:
        """Watch the supervisor of a subscribed run, so that its death is noticed at once."""
        proc = find_process(folder.supervisor())
        fd = open_pidfd(proc.pid) if proc is not None else -1
        if fd < 0:
            self._recover(folder)
            return
        self.pidfds[folder.name] = fd

        def died() -> None:
            self._unwatch(folder.name)
            self._recover(folder)
            if folder.name in self.subscriptions:
                self.subscriptions[folder.name].dirty = True

        self._handle(fd, died)

    def _unwatch(self, run: str) -> None:
        fd = self.pidfds.pop(run, -1)
        if fd >= 0:
            self._forget(fd)
            os.close(fd)

    def _leave(self, run: str) -> None:
        if self.subscriptions.pop(run, None) is not None:
            self.watcher.remove(run)
            self._unwatch(run)

    def _unsubscribe(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        self._leave(fields.run())
        return {}, b""

    def _ack(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        subscription = self.subscriptions.get(fields.run())
        stream = subscription.stream(fields.text("stream", STREAM)) if subscription else None
        offset = fields.integer("offset", 0, 1 << 62)
        if subscription is not None and stream is not None:
            stream.acknowledge(offset)
            subscription.dirty = True
        return {}, b""

    def _renew(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        runs = fields.texts("runs", RUN_NAME, limit=1 << 16)
        reading = fields.number("boottime_s", 0, 1e12)
        renew(self.layout, runs, reading, fields.number("orphan_timeout_s", 0, 1e8))
        return {}, b""

    def _read(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self.layout.run(fields.run())
        name = fields.text("stream", READABLE)
        rank, _, kind = name.rpartition(".")
        path = folder.file("events.supervisor") if rank == "supervisor" else folder.file(rank, kind)
        offset = fields.integer("offset", -(1 << 62), 1 << 62)
        length = fields.integer("length", 0, 4 << 20)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Refused("unknown_stream", f"{folder.name} has no {name} on this host: {error.strerror}.") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Refused("unknown_stream", f"{name} of {folder.name} is not a regular file.")
            start = max(0, found.st_size + offset) if offset < 0 else offset
            start, data = read_log(fd, path, start, length) if kind == "log" else (start, os.pread(fd, length, start))
        finally:
            os.close(fd)
        return {"bytes": len(data), "size": found.st_size, "offset": start}, data

    def _telemetry(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self._folder(fields)
        inner = fields.inner("streams")
        if len(inner.values) > 1025 or not all(MEASUREMENTS.fullmatch(str(name)) for name in inner.values):
            raise inner.bad("", "must have at most 1025 keys, each 'samples' or 'rank<k>.timings'")
        offsets = {name: inner.integer(name, 0, 1 << 62) for name in inner.values}
        most = fields.integer("most_bytes", 1, TELEMETRY_BYTES)
        if self.output.size > TELEMETRY_WATER:
            raise Refused("busy", "Events and logs of this channel are sent first. Ask again later.")
        parts, data = read_measurements(folder, offsets, most)
        return {"parts": parts, "bytes": len(data)}, data

    def _have(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        kind = fields.text("kind", re.compile("|".join(KINDS)))
        digests = fields.texts("digests", DIGEST, limit=1024)
        missing = []
        for digest in digests:
            paths = [self.layout.archive(kind, digest)] + [self.layout.library(digest)] * (kind == "libraries")
            if not any(os.path.exists(path) for path in paths):
                missing.append(digest)
            for path in paths:
                # An archive that is about to be used gets a new time, so that ``collect`` keeps it.
                with contextlib.suppress(OSError):
                    os.utime(path)
        return {"missing": missing}, b""

    def _net_listen(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        nonce = fields.text("nonce", WORD)
        port_range = fields.port_range("port_range")
        where = addresses_to_listen_on(fields.text("interface", limit=64, default=None))
        if nonce not in self.listeners:
            if len(self.listeners) >= 64:
                raise Refused("busy", "64 network checks are open on this channel, which is the limit. Close one.")
            self.listeners[nonce] = open_listeners(port_range, where)
            for sock in self.listeners[nonce]:
                self._handle(sock.fileno(), functools.partial(self._greet, sock, nonce))
        port = self.listeners[nonce][0].getsockname()[1] if self.listeners[nonce] else 0
        return {"port": port, "addresses": candidates()}, b""

    def _greet(self, sock: socket.socket, nonce: str) -> None:
        """Send the nonce to a process that connects."""
        with contextlib.suppress(OSError):
            connection, _ = sock.accept()
            with connection:
                connection.setblocking(False)
                connection.send(nonce.encode() + b"\n")

    def _net_close(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        nonce = fields.text("nonce", WORD)
        for sock in self.listeners.pop(nonce, ()):
            self._forget(sock.fileno())
            sock.close()
        for path in self.shared_checks.pop(nonce, ()):
            shutil.rmtree(os.path.join(os.path.expanduser(path), f".dtrain-check-{nonce}"), ignore_errors=True)
        return {}, b""

    # Slow commands check their fields now and return the work of a thread.

    def _probe(self, fields: Fields) -> Callable[[], Json]:
        return lambda: probe(self.layout)

    def _status(self, fields: Fields) -> Callable[[], Json]:
        items = [Fields(item, "slots") for item in fields.items("slots", limit=65536, default=[])]
        devices = {slot.integer("slot", 0, 65535): slot.text("device", DEVICE, default=None) for slot in items}
        names = fields.texts("runs", RUN_NAME, limit=COLLECT_LIMIT) if "runs" in fields.values else None
        return lambda: status(self.layout, devices, names)

    def _preflight(self, fields: Fields) -> Callable[[], Json]:
        paths = fields.texts("shared_paths", limit=64, default=[])
        if paths:
            self.shared_checks.setdefault(fields.text("nonce", WORD), set()).update(paths)
        return lambda: preflight(self.layout, fields)

    def _net_connect(self, fields: Fields) -> Callable[[], Json]:
        nonce = fields.text("nonce", WORD)
        timeout_s = fields.number("timeout_s", 0.01, 60, default=5)
        targets = []
        for index, item in enumerate(fields.items("targets", limit=1024)):
            target = Fields(item, f"targets.{index}")
            targets.append((target.text("address", WORD), target.integer("port", 1, 65535)))
        return lambda: {"results": connect_all(nonce, targets, timeout_s)}

    def _fence(self, fields: Fields) -> Callable[[], Json]:
        run = fields.run()
        token = fields.integer("token", 0, 10**18)
        wait_s = fields.number("wait_s", 0, 60, default=FENCE_WAIT_S)
        launch = fields.text("launch", WORD, default=None)
        return lambda: fence(self.layout, run, token, wait_s, launch)

    def _remove_checkpoints(self, fields: Fields) -> Callable[[], Json]:
        names = fields.texts("names", CHECKPOINT_NAME, limit=4096)
        folder = fields.text("folder")
        if fields.text("run", default=None) is not None:
            root = self.layout.run(fields.run()).path
        else:
            root = fields.text("root")
            if not root.startswith("/") or ".." in root.split("/"):
                raise fields.bad("root", f"must be an absolute path without '..', got {shorten(root)}")
            if not os.path.isdir(root):
                raise Refused("not_found", f"This host has no folder {shorten(root)}. Mount it, or correct the path.")
        return lambda: remove_checkpoints(root, folder, names)

    def _collect(self, fields: Fields) -> Callable[[], Json]:
        age_s = fields.number("older_than_s", 0, 1e12)
        dry_run = fields.flag("dry_run", default=False)
        named = "runs" in fields.values
        runs = fields.texts("runs", RUN_NAME, limit=COLLECT_LIMIT) if named else None
        archives = fields.texts("archives", ARCHIVE_NAME, limit=COLLECT_LIMIT, default=[])
        return lambda: collect(self.layout, age_s, runs=runs, archives=archives, dry_run=dry_run)

    def _match(self, fields: Fields) -> Callable[[], Json]:
        folder = self._folder(fields)
        patterns = fields.texts("patterns", least=1, limit=64)
        return lambda: run_match(folder, patterns)

    def _stacks(self, fields: Fields) -> Callable[[], Json]:
        return stacks_request(self._folder(fields), fields)

    def _exec(self, fields: Fields) -> Callable[[], Json]:
        return exec_request(self._folder(fields), fields, lambda: self.open and not self.output.broken)

    # Heartbeats, recovery and streams.

    def _note_changes(self) -> None:
        for run in self.watcher.changed():
            if run in self.subscriptions:
                self.subscriptions[run].dirty = True

    def _beat(self) -> None:
        now = time.monotonic()
        with_beat = now >= self.next_beat
        if with_beat or now >= self.next_progress:
            self.next_progress = now + LOOK_S
            self._tell_progress(with_beat)
        if not with_beat:
            return
        self.next_beat = now + BEAT_S
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
                self._recover(folder)
        for subscription in self.subscriptions.values():
            if not subscription.final and subscription.folder.ended():
                self._tell_end_again(subscription.folder)
        self.output.frame({"t": "beat", "boottime_s": boottime(), "runs": alive})

    def _tell_progress(self, with_beat: bool) -> None:
        """Poll the ranks of subscribed runs. Report them with each heartbeat, and a stalled one at once."""
        for run, subscription in self.subscriptions.items():
            if subscription.final:
                continue
            report, is_news = subscription.progress.look()
            if report["ranks"] and (is_news or with_beat):
                self.output.frame({"t": "progress", "run": run, **report})

    def _recover(self, folder: RunFolder) -> None:
        """Recover a run whose supervisor is dead, in a thread."""
        if not folder.ended() and folder.has("started"):
            self._upkeep(folder, recover)

    def _tell_end_again(self, folder: RunFolder) -> None:
        """Restore the ``ended`` event of a run whose file lost it after the end, in a thread."""
        self._upkeep(folder, restore_end)

    def _upkeep(self, folder: RunFolder, task: Callable[[RunFolder], object]) -> None:
        """Do a task for a run in a thread, one task at a time for each run."""
        if folder.name in self.recovering:
            return

        def work() -> Json:
            try:
                task(folder)
            finally:
                self.recovering.discard(folder.name)
            return {}

        # Before the thread exists, because a quick one removes the name at once.
        self.recovering.add(folder.name)
        try:
            self._start_thread(None, work)
        except Refused:
            self.recovering.discard(folder.name)

    def _pump(self) -> None:
        """Send the new data of all subscriptions, one frame of each stream in turn."""
        now = time.monotonic()
        if now >= self.next_look:
            busy = False
            for run in self.watcher.blind & set(self.subscriptions):
                busy = busy or self.subscriptions[run].dirty
                self.subscriptions[run].dirty = True
            self.idle_s = 0.02 if busy else min(0.25, self.idle_s * 2)
            self.next_look = now + self.idle_s
        for subscription in list(self.subscriptions.values()):
            if subscription.complete or not subscription.dirty or now < subscription.not_before:
                continue
            if self.output.size >= HIGH_WATER:
                return
            sent = 0
            for frame, data in subscription.frames():
                self.output.frame(frame, data)
                sent += len(data)
            # A rank that prints line by line must not cause a frame for each line.
            subscription.not_before = now + (0.004 if sent < 16 << 10 else 0.0)

    QUICK: dict[str, Callable[[Follow, str | None, Fields], tuple[Json, bytes] | None]] = {
        "have": _have, "prepare": _prepare, "go": _go, "stop": _stop, "request_stop": _request_stop,
        "decide": _decide,
        "subscribe": _subscribe, "unsubscribe": _unsubscribe, "ack": _ack, "renew": _renew, "read": _read,
        "telemetry": _telemetry,
        "net_listen": _net_listen, "net_close": _net_close,
    }  # fmt: skip
    SLOW: dict[str, Callable[[Follow, Fields], Callable[[], Json]]] = {
        "probe": _probe, "status": _status,
        "preflight": _preflight, "net_connect": _net_connect, "fence": _fence, "collect": _collect,
        "remove_checkpoints": _remove_checkpoints,
        "match": _match, "stacks": _stacks, "exec": _exec,
    }  # fmt: skip
