"""Parent of a run's ranks."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from typing import Any

from ..fields import number
from ..file_access import read_json, write_json, write_mark
from ..files.events import EventLog
from ..files.layout import Layout
from ..limits import (
    CONTAINER_END_S,
    CONTAINER_START_S,
    FLOOD_CHECK_S,
    JOIN_S,
    LOG_CHECK_S,
    LOG_TAIL,
    METRICS_CHECK_S,
    SAMPLER_PATIENCE_S,
)
from ..machine.job_process import JobProcess
from ..machine.processes import (
    Proc,
    all_procs,
    boottime,
    descendants,
    has_children,
    identity,
    send_signal,
    start_time,
)
from ..names import Json
from .container import Container
from .exit_evidence import ExitEvidence
from .forked_program import RankProgram
from .leftovers import origin
from .log_clock import LogClock
from .log_limit import cap_log
from .metrics_file import MetricsFile
from .preparation import Preparation
from .rank_environment import left_out, rank_environment
from .ranks import (
    Rank,
    enter_rank,
    error_of,
    execute,
    has_error,
    keep_descriptors,
    oom_cause,
    rank_argv,
    report_cannot_start,
    tail_of,
)
from .sampler import start_sampler
from .stop_request import StopRequest
from .stray_ranks import WARNING
from .warm_image import WarmImage
from .warm_key import ColdCode
from .warm_record import WarmRecord
from .warm_start import warm_folder


class Supervisor:
    """Parent of a run's ranks on this host: one thread, woken by signals, its control FIFO and deadlines.

    States: ``preparing``, ``prepared``, ``running``, ``stopping`` (SIGTERM was sent), ``killing``,
    ``ended``. Commands arrive as files. A byte in the FIFO announces a new one.
    """

    def __init__(
        self,
        layout: Layout,
        plan: Json,
        context: Json,
        secrets: dict[str, str],
        image: WarmImage | None = None,
        why_executed: str = "",
    ) -> None:
        self.plan = plan
        #: Reason without an image.
        self.why_executed = why_executed
        #: What the ranks are forked from; None: they are executed.
        self.image = image
        #: Values of the trial. They are no part of the plan, so that processes of several trials may share one.
        self.context = context
        self.secrets = secrets
        self.folder = layout.run(plan["run"])
        self.state = "preparing"
        self.reason: str | None = None
        self.first_failure: int | None = None
        first = Rank(plan["ranks"][0], self.folder)
        self.ranks = [first]
        self.ranks += [Rank(rank, self.folder, first if plan["per_host"] else None) for rank in plan["ranks"][1:]]
        self.log_clocks = [LogClock(rank.folder) for rank in self.ranks]
        #: Ranks that this process starts.
        self.started = [rank for rank in self.ranks if rank.launcher is None]
        #: Ranks whose end is not recorded yet, with exit code and time.
        self.dead = list[tuple[Rank, int, float]]()
        #: Different devices of the ranks; cleared once a warning about their use was written.
        # Those that a launcher has started are not known by their processes.
        self.devices = {rank.plan["device"] for rank in self.started if rank.plan["device"]}
        self.container = Container(self.folder, plan["container"]) if plan["container"] else None
        self.prepared = Preparation(layout, plan, context, self.ranks, self.container)
        self.evidence = ExitEvidence(self.folder)
        #: The runtime did not confirm the end of the container.
        self.is_stuck = False
        self.unwritten: deque[Json] = deque()
        self.grace_deadline = float("inf")
        self.timeout_deadline = float("inf")
        self.prepare_deadline = float("inf")
        #: On CLOCK_BOOTTIME.
        self.orphan_deadline = float("inf")
        self.is_woken = False
        self.next_log_check = 0.0
        self.log_check_s = FLOOD_CHECK_S
        self.kill_pause_s = 0.001
        #: The supervisor received SIGTERM, e.g. because the host shuts down.
        self.terminated = False
        #: The external job that this node belongs to is over.
        self.is_job_over = False
        #: Pid of the process that measures the host; 0 = none.
        self.sampler = 0
        self.killing_since = 0.0
        #: The ranks were requested to write a checkpoint and end. None: they were not.
        self.request: StopRequest | None = None
        #: Ranks that may be unaware of the request, and the time from which on they get it as a signal.
        self.to_signal = list[Rank]()
        self.signal_from = 0.0
        self.request_deadline = float("inf")
        self.started_at = 0.0
        #: On the host of rank 0.
        self.metrics: MetricsFile | None = None
        self.next_metrics_check = 0.0

    # Preparing.

    def prepare(self) -> Json:
        """Claim the run and its slots, write its files, and return the answer to ``prepare``.

        :raises Refused: this run cannot start here; nothing of it remains
        """
        prepared = self.prepared
        try:
            if (answer := prepared.run()) is not None:
                return answer
            self.plan = prepared.plan
            self._listen(prepared.port)
        except BaseException:
            prepared.give_up()
            raise
        image = {} if self.container is None else {"image": self.container.facts}
        return {"state": "prepared", "attached": False, "port": prepared.port, **image}

    def _listen(self, port: int | None) -> None:
        """Become ready for commands. The state ``prepared`` is recorded last."""
        control = self.folder.file("control")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(control)
        os.mkfifo(control, 0o600)
        # Open for both directions, so that it never reports end-of-file when writers close it.
        self.control = os.open(control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "terminated", True))
        self.poller = select.poll()
        self.poller.register(self.control, select.POLLIN)
        self.poller.register(self.wakeup, select.POLLIN)
        if self.container is not None and self.container.fileno() >= 0:
            self.poller.register(self.container, select.POLLIN)
        self.events = EventLog(self.folder.file("events.supervisor"))
        self.prepare_deadline = time.monotonic() + self.plan["prepare_timeout_s"]
        if self.plan["orphan_timeout_s"]:
            self.orphan_deadline = boottime() + self.plan["orphan_timeout_s"]
        self.job = JobProcess(os.environ)
        if self.job.fd >= 0:
            self.poller.register(self.job.fd, select.POLLIN)
        self.port = port
        self.renewed = boottime()
        self.event("prepared", port=port)
        self.set_state("prepared")

    # Running.

    def run(self) -> None:
        """Serve until no process of the run is left."""
        while self.state != "ended":
            self._wait()
            self._read_commands()
            self._reap()
            self._check_deadlines()
            # After the deadlines: a supervisor resumed after a long SIGSTOP must not start an abandoned run.
            self._check_go()
            self._advance()
            self._retry_events()

    def _wait(self) -> None:
        now = time.monotonic()
        deadlines = [self.grace_deadline, self.timeout_deadline, self.prepare_deadline, self.request_deadline]
        deadlines.append(now + 30.0)
        deadlines.append(now + self.orphan_deadline - boottime())
        if self.state == "killing":
            deadlines.append(now + self.kill_pause_s)
            self.kill_pause_s = min(1.0, self.kill_pause_s * 2)
        if self.state in ("running", "stopping"):
            deadlines.append(self.next_log_check)
            if self.metrics is not None:
                deadlines.append(self.next_metrics_check)
        if self.unwritten or self.to_signal:
            deadlines.append(now + 1.0)
        for fd, _ in self.poller.poll(max(0.0, (min(deadlines) - now) * 1000 + 0.5)):
            if fd in (self.control, self.wakeup):
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            self.is_woken = self.is_woken or fd == self.control
            if fd == self.job.fd:
                self.poller.unregister(fd)
                self.job.close()
                self.is_job_over = True

    def _read_commands(self) -> None:
        folder = self.folder
        if folder.has_tombstone:
            self.begin_stop("fenced", 0.0)
        if folder.is_removed(self.prepared.inode):
            # Its end cannot be recorded, and the fence finds this process by its lock.
            self.begin_stop("lost", self.plan["grace_s"])
        if self.is_job_over or (self.job.fd < 0 and self.job.has_ended):
            self.begin_stop("job_ended", 0.0)
        if self.terminated:
            self.begin_stop("stopped", self.plan["grace_s"])
        stop = read_json(folder.file("stop.json"))
        if stop is not None:
            grace = stop.get("grace_s")
            self.begin_stop("stopped", float(grace if isinstance(grace, (int, float)) else self.plan["grace_s"]))
        if self.state == "running" and self.request is None and folder.has("stop_requested"):
            self._take_request(read_json(folder.file("stop_requested")) or {})
        if self.to_signal:
            self._signal_programs()
        if len(self.devices) > 1 and (warning := read_json(self.folder.file(WARNING))) is not None:
            # Once: the file stays, and with fewer devices it is not read again.
            self.devices.clear()
            self.event("warning", text=str(warning["text"]))

    def _check_go(self) -> None:
        if self.state == "prepared" and (go := read_json(self.folder.file("go.json"))) is not None:
            self._start(go)

    def _take_request(self, asked: Json) -> None:
        """Begin to ask the ranks for their end.

        :param asked: ``by_signal``: no rank uses the library, so all get SIGTERM at once; ``grace_s``: their time
        """
        self.signal_from = self.started_at + JOIN_S
        if asked.get("by_signal") is True:
            self.signal_from = 0.0
            # Only the library reports that training is not complete.
            self.reason = "stopped"
        grace = asked.get("grace_s")
        if isinstance(grace, (int, float)):
            self.request_deadline = time.monotonic() + grace
        self._request_stop()

    def _request_stop(self) -> None:
        self.request = StopRequest()
        self.to_signal = [rank for rank in self.ranks if rank.running]

    def _signal_programs(self) -> None:
        """Send SIGTERM to the programs that do not use the training library, so do not poll for a requested stop."""
        self.to_signal = [rank for rank in self.to_signal if rank.running and self.state == "running"]
        if self.request is not None and time.monotonic() >= self.signal_from:
            self.request.send(rank for rank in self.to_signal if not self.folder.has(f"progress/{rank.number}"))

    def _start(self, go: Json) -> None:
        """Fork the ranks. The ``started`` mark is durable before the first one exists."""
        write_mark(self.folder.file("started"), {"at": time.time(), **go, **identity(), "origin": origin()})
        self.prepare_deadline = float("inf")
        self.started_at = time.monotonic()
        self.evidence.begin(self.prepared.cgroup)
        if self.plan["timeout_s"]:
            self.timeout_deadline = time.monotonic() + self.plan["timeout_s"]
        python, image = None, None
        if self.container is not None:
            python, image = str(self.container.facts.get("executable")), self.container.environment
        argv = rank_argv(self.plan, python)
        environments = [
            rank_environment(self.plan, self.context, rank.plan, self.folder, go, self.secrets, image)
            for rank in self.started
        ]
        reason = self._choose_image()
        failed = None
        for rank, env in zip(self.started, environments):
            try:
                self._fork(rank, argv, env)
            except OSError as error:
                failed = (rank, error)
                break
        if self.container is not None:
            self._wait_for_ranks(self.container)
        self.secrets = {}
        self.next_log_check = time.monotonic() + FLOOD_CHECK_S
        chief = next((rank for rank in self.ranks if rank.number == 0), None)
        if chief is not None:
            self.metrics = MetricsFile(self.folder, chief.folder, self.context)
            if (warning := left_out(environments[0])) is not None:
                self.event("warning", text=warning)
        self.set_state("running")
        how = {"forked": self.image is not None, "why_executed": reason} if self.plan["warm"] else {}
        self.event("started", ranks=[{"rank": rank.number, "pid": rank.pid} for rank in self.ranks if rank.pid], **how)
        self.prepared.leave_cgroup()
        # Ranks of a container may have ended already.
        self._reap()
        if failed is not None:
            self._not_started(*failed)
        elif self.plan["sampling_interval_s"] or len(self.devices) > 1:
            ranks = [{"rank": rank.number, "pid": rank.pid, "device": rank.plan["device"]} for rank in self.ranks]
            # The run continues without a sampler. A system that refuses this process refuses those of the ranks too.
            with contextlib.suppress(OSError):
                self.sampler = start_sampler(self.folder, self.plan["sampling_interval_s"], ranks)

    def _choose_image(self) -> str | None:
        """Let the ranks be executed unless they behave as such when they are forked. Return the reason."""
        if self.image is None:
            return self.why_executed
        try:
            self.image.check(self.folder.layout, self.plan, self.folder.file("work"), self.secrets)
        except Exception as error:
            # Whatever it is, executed ranks do not depend on it.
            self.image = None
            if isinstance(error, ColdCode):
                self._record().note_refusal(self.plan["payload"], str(error))
            return str(error)
        return None

    def _record(self) -> WarmRecord:
        return WarmRecord(warm_folder(self.folder.layout), self.plan)

    def _fork(self, rank: Rank, argv: list[str], env: dict[str, str]) -> None:
        slots = [one.plan["slot"] for one in self.ranks if rank in (one, one.launcher)]
        locks = [lock for slot in slots for lock in self.prepared.slots.held.get(slot, [])]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(os.path.join(rank.folder, "log"), flags, 0o600)
        parent = os.getpid()
        try:
            if self.container is not None:
                self.container.start_rank(rank, argv, env, log, locks)
                return
            pid = os.fork()
            if pid == 0:
                try:
                    enter_rank(self.folder, parent, self.prepared.cgroup, log)
                    if self.image is not None:
                        raise RankProgram(self.image, rank, argv, env, locks)
                    keep_descriptors(locks)
                    execute(rank, argv, env)
                except RankProgram:
                    raise
                except BaseException as error:
                    report_cannot_start(rank, argv[0], error)
                os._exit(127)
        finally:
            os.close(log)
        rank.pid = pid
        rank.start_time = start_time(pid)

    def _wait_for_ranks(self, container: Container) -> None:
        """Wait until every rank of the container has a process, or the container has ended."""
        while not all(rank.pid for rank in self.started) and container.fileno() >= 0:
            self._read_container(container, CONTAINER_START_S)

    def _read_container(self, container: Container, wait_s: float = 0.0) -> None:
        """Read the reports of the container about its ranks."""
        fd = container.fileno()
        for message in container.receive(wait_s):
            for rank in self.started:
                if rank.number == message.fields.get("started"):
                    rank.pid, rank.start_time = message.pid, start_time(message.pid)
                elif rank.number == message.fields.get("exited"):
                    self._note_exit(rank, os.waitstatus_to_exitcode(number(message.fields.get("status"))))
        if fd >= 0 and container.fileno() < 0:
            # The kernel has killed all processes of the container.
            self.poller.unregister(fd)
            for rank in self.started:
                if rank.exit_code is None:
                    self._note_exit(rank, -signal.SIGKILL)

    def _note_exit(self, rank: Rank, code: int) -> None:
        rank.pid = rank.pid or -1
        rank.exit_code = code
        self.dead.append((rank, code, time.time()))
        for worker in self.ranks:
            if worker.launcher is rank:
                worker.exit_code = code
                # Those without an error of their own were ended by the launcher.
                worker.signalled = rank.signalled or not has_error(worker.folder)
                self.dead.append((worker, code, time.time()))
        failed = [one for one in self.ranks if one.launcher is rank and has_error(one.folder)]
        rank.signalled = rank.signalled or (bool(failed) and not has_error(rank.folder))

    def _not_started(self, rank: Rank, error: OSError) -> None:
        """Record that the system refused a process for a rank, and fail the run."""
        message = f"cannot start a process: {error.strerror}"
        rank.exit_code = 126
        self.event(
            "exit",
            rank=rank.number,
            exit_code=126,
            error={"message": message, "traceback": ""},
            log_tail="",
            sent_signal=False,
        )
        self.first_failure = rank.number
        self.begin_stop("failed", self.plan["grace_s"])

    def _reap(self) -> None:
        """Collect the exit status of every dead child, including inherited orphans of the ranks."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                self.evidence.note_limits(found.si_pid)
                pid, status, usage = os.wait4(found.si_pid, 0)
                if pid == self.sampler:
                    self.sampler = 0
                    continue
                if self.container is not None:
                    self.container.note_status(pid, status)
                    continue
                rank = next((rank for rank in self.ranks if rank.pid == pid and rank.running), None)
                if rank is not None:
                    self.evidence.note_usage(pid, usage)
                    self._note_exit(rank, os.waitstatus_to_exitcode(status))
        if self.container is not None:
            self._read_container(self.container)
        dead, self.dead = self.dead, []
        # Record all exits before sending a signal: two ranks that died by themselves are two failures.
        for rank, code, at in dead:
            self._record_exit(rank, code, at)
        if dead and self.state == "running":
            # A rank that was requested to end may exit with any status. All other ranks were requested too.
            if any(code != 0 and not (self.request is not None and rank.signalled) for rank, code, _ in dead):
                self.begin_stop("failed", self.plan["grace_s"])
            else:
                self.set_state("running")

    def _record_exit(self, rank: Rank, code: int, at: float) -> None:
        tail = tail_of(os.path.join(rank.folder, "log"), LOG_TAIL).decode("utf-8", "replace")
        error = error_of(rank.folder, code)
        if code == -signal.SIGKILL and not rank.signalled and error is not None:
            error["message"] += f": {self._kill_cause()}"
        self.event(
            "exit",
            at=at,
            rank=rank.number,
            exit_code=code,
            error=error,
            log_tail=tail,
            sent_signal=rank.signalled,
            **self.evidence.of_rank(rank, code),
        )
        if code != 0 and not rank.signalled and self.first_failure is None:
            self.first_failure = rank.number

    def _kill_cause(self) -> str:
        """Return the probable cause of a SIGKILL that this supervisor did not send."""
        if self.container is not None and self.container.fileno() < 0:
            self.container.wait_client(CONTAINER_END_S)
            return self.container.end_text()
        return oom_cause(self.evidence.oom_kills())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if now > self.prepare_deadline:
            self.begin_stop("prepare_timeout", 0.0)
        if now > self.timeout_deadline:
            self.timeout_deadline = float("inf")
            self.begin_stop("timeout", self.plan["grace_s"])
        if now > self.request_deadline:
            self.request_deadline = float("inf")
            self.begin_stop("stopped", self.plan["grace_s"])
        # A process that wakes the supervisor may have shortened the lease.
        was_woken = self.is_woken
        self.is_woken = False
        if (was_woken or boottime() > self.orphan_deadline) and self._is_orphan():
            self.begin_stop("orphaned", self.plan["grace_s"])
        if self.state in ("running", "stopping") and now >= self.next_log_check:
            for clock in self.log_clocks:
                clock.note()
            cut = [cap_log(rank, self.plan["log_limit_bytes"]) for rank in self.ranks]
            self.log_check_s = FLOOD_CHECK_S if any(cut) else min(LOG_CHECK_S, 2 * self.log_check_s)
            self.next_log_check = now + self.log_check_s
        if self.metrics is not None and self.state in ("running", "stopping") and now >= self.next_metrics_check:
            self.next_metrics_check = now + METRICS_CHECK_S
            self._read_metrics(self.metrics)

    def _read_metrics(self, metrics: MetricsFile) -> None:
        """Read the metrics file. Send SIGTERM to the ranks once the searcher has stopped the trial."""
        metrics.check()
        if self.state == "running" and self.request is None and metrics.is_stopped():
            self._request_stop()

    def _is_orphan(self) -> bool:
        """Return whether the last renewal has expired. Called only if it may have, because this reads a file."""
        deadline = self.folder.renewal().get("deadline_boottime_s")
        if deadline is not None:
            self.orphan_deadline = float("inf") if deadline == 0 else float(deadline)
        over = boottime() > self.orphan_deadline
        if over:
            self.orphan_deadline = float("inf")
        return over

    # Ending.

    def begin_stop(self, reason: str, grace_s: float) -> None:
        """End the run: SIGTERM to every process of the ranks, after ``grace_s`` SIGKILL.

        The first reason is kept. A later, shorter grace period replaces a longer one.
        """
        if self.state in ("killing", "ended"):
            return
        if self.reason is None:
            self.reason = reason
        if grace_s <= 0 or not any(rank.running for rank in self.ranks):
            self._begin_kill()
            return
        self.grace_deadline = min(self.grace_deadline, time.monotonic() + grace_s)
        if self.state != "stopping":
            self.evidence.collect_stacks(rank for rank in self.ranks if rank.running)
            self.set_state("stopping")
            self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        self._mark_signalled()
        if self.container is not None:
            procs = self.container.processes()
        else:
            procs = [proc for proc in descendants([os.getpid()], all_procs()) if proc.pid != self.sampler]
        for proc in procs:
            send_signal(proc, number)

    def _mark_signalled(self) -> None:
        """Record which ranks end because of a signal. One that has written its error before has failed by itself.

        It may close its connections long before its process ends, so that other ranks end before it.
        """
        for rank in self.ranks:
            rank.signalled = rank.signalled or (rank.running and not has_error(rank.folder))

    def _begin_kill(self) -> None:
        self.prepared.leave_cgroup()
        self._mark_signalled()
        self.prepare_deadline = self.timeout_deadline = self.request_deadline = float("inf")
        self.grace_deadline = self.orphan_deadline = float("inf")
        self.killing_since = time.monotonic()
        self.set_state("killing")

    def _advance(self) -> None:
        if self.state in ("running", "stopping") and not any(rank.running for rank in self.ranks):
            if self.metrics is not None:
                self.metrics.check(final=True)
            failed = any(rank.exit_code for rank in self.ranks)
            self.reason = self.reason or ("stopped" if failed else "completed")
            self._begin_kill()
        if self.state == "stopping" and time.monotonic() >= self.grace_deadline:
            self._begin_kill()
        if self.state == "killing":
            self._sweep()

    def _sweep(self) -> None:
        """Kill all descendants. Without a child left, no process of the run is left.

        A subreaper inherits every orphan, so the absence of children proves this for detached processes too. Processes
        of a container may be children of its runtime, which has to confirm that they are gone.
        """
        if self.container is not None and (reason := self.container.kill()) is not None:
            if not self.is_stuck:
                self.event("warning", text=f"{reason}. The slots stay taken until the runtime has confirmed the end.")
            self.is_stuck = True
            return
        for _ in range(20):
            if self.prepared.cgroup is not None:
                self.prepared.cgroup.kill()
            procs = descendants([os.getpid()], all_procs())
            for proc in procs:
                send_signal(proc, signal.SIGKILL)
            self._reap()
            if not has_children() or self._only_sampler_left(procs):
                self._finish()
                return
            if not procs:
                return

    def _only_sampler_left(self, procs: list[Proc]) -> bool:
        """Return whether only the sampler is left, killed a while ago and stuck in a driver.

        It holds no lock and runs no code of the run, so it must not prevent the run from ending.
        """
        alone = bool(self.sampler) and [proc.pid for proc in procs] == [self.sampler]
        return alone and time.monotonic() - self.killing_since > SAMPLER_PATIENCE_S

    def _finish(self) -> None:
        """Record the end and release everything. The locks are released last, with the process."""
        if self.prepared.cgroup is not None:
            self.prepared.cgroup.remove()
        with contextlib.suppress(OSError):
            os.unlink(self.folder.file("control"))
        self._note_imports()
        # For bytes written since the last check. No check follows.
        for clock in self.log_clocks:
            clock.note(is_last=True)
        for rank in self.ranks:
            cap_log(rank, self.plan["log_limit_bytes"])
        self.set_state("ended")
        deadline = time.monotonic() + 60.0
        self.event("ended", reason=self.reason, first_failure=self.first_failure)
        while self.unwritten and time.monotonic() < deadline:
            time.sleep(0.5)
            self._retry_events()
        if not self.unwritten:
            with contextlib.suppress(OSError):
                shown = {"reason": self.reason, "first_failure": self.first_failure, "at": time.time()}
                # If a crash of the host loses it, it is recreated from the event.
                write_json(self.folder.file("ended"), shown, durable=False)
        with contextlib.suppress(OSError):
            os.unlink(self.folder.file("reserve"))

    def _note_imports(self) -> None:
        """Let the next launch of this program import what this one has."""
        if self.image is not None:
            # The end of the run is recorded, whatever the packages of its interpreter are.
            with contextlib.suppress(Exception):
                self._record().note_modules(self.ranks[0].folder)

    # Records.

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event. On a full disk the reserve is freed, and events that still fail wait in order."""
        self.unwritten.append({"at": time.time(), "kind": kind, **fields})
        self._retry_events()

    def _retry_events(self) -> None:
        while self.unwritten:
            try:
                self.events.write(self.unwritten[0])
            except OSError:
                if not self.folder.has("reserve"):
                    return
                os.unlink(self.folder.file("reserve"))
                continue
            self.unwritten.popleft()

    def set_state(self, state: str) -> None:
        """Enter a state and write it to state.json."""
        self.state = state
        document = {
            "state": state, "port": self.port, "token": self.plan["token"], "reason": self.reason,
            "prepared_boottime_s": self.renewed, "ranks": [rank.record() for rank in self.ranks],
        }  # fmt: skip
        with contextlib.suppress(OSError):
            write_json(self.folder.file("state.json"), document, durable=False)
