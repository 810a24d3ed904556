"""Commands that a node executes for followers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, NamedTuple

from .connection import HIGH_WATER, Connection
from .frames import DATA_BYTES, WINDOW, Frame, FrameError, Kind, credit_body, exit_body, with_document

#: Most commands of one follower at the same time.
COMMANDS_LIMIT = 256
#: Starts at the same time. A home folder on a server that hangs blocks a start, and nothing else.
_STARTS = 16
#: Reads of a stream before other streams get their turn.
_READS = 4
#: Variables by which programs would detect Slurm or a process manager, and take over. GPU variables stay.
_OF_SLURM = re.compile(
    r"(SLURM|SLURMD|SLURMSTEPD|SRUN|SBATCH|SALLOC|PMI|PMI2|PMIX|PALS|HYDRA|I_MPI_HYDRA)_.*|PMI_?"
    r"|MPI_LOCAL(RANKID|NRANKS)|(OMPI|PRTE)_MCA_plm_slurm_args"
)


def command_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of commands: those of this process without Slurm's, and this process itself.

    The last one is that of ``machine/job_process.py``, by which a process that has left its parents follows the job.
    """
    kept = {name: value for name, value in environ.items() if not _OF_SLURM.fullmatch(name)}
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start_time = file.read().rpartition(")")[2].split()[19]
    return {**kept, "DTRAIN_JOB_PROCESS": f"{os.getpid()} {start_time}"}


class Started(NamedTuple):
    """A process and this side's ends of its pipes, or the reason why there is none."""

    process: subprocess.Popen[bytes] | None = None
    stdin: int = -1
    stdout: int = -1
    stderr: int = -1
    #: Exit status and standard error of a program that cannot be executed.
    exit_code: int = 0
    errors: bytes = b""
    #: Reason why this node can start nothing.
    problem: str = ""


def start(argv: list[str], home: str, environment: Mapping[str, str]) -> Started:
    """Start a command in a session of its own. Blocks."""
    if not os.path.isdir(home):
        return Started(problem=f"the account has no home folder {home}")
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
        stdin, our_stdin, our_stdout, stdout, our_stderr, stderr = fds
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=home, env=dict(environment), start_new_session=True
        )
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return Started(exit_code=127, errors=f"{argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        if isinstance(error, PermissionError):
            return Started(exit_code=126, errors=f"{argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        if isinstance(error, (OSError, ValueError, subprocess.SubprocessError)):
            return Started(problem=f"it cannot start a process: {error}")
        raise
    for fd in (stdin, stdout, stderr):
        os.close(fd)
    for fd in (our_stdin, our_stdout, our_stderr):
        os.set_blocking(fd, False)
    return Started(process, our_stdin, our_stdout, our_stderr)


class _Output:
    """Standard output or standard error of a command, sent as far as its window reaches."""

    def __init__(self, command: Command, kind: Kind, fd: int) -> None:
        self._command, self._kind, self._fd = command, kind, fd
        self._credit = WINDOW
        self._is_registered = False
        #: True while the pipe has nothing to read.
        self.is_drained = False
        self.pump()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def add_credit(self, count: int) -> None:
        self._credit = min(WINDOW, self._credit + count)
        self.pump()

    def pump(self) -> None:
        """Send what is there, and wait for further bytes or for room."""
        self.is_drained = not self.is_open
        for _ in range(_READS):
            if not self.is_open or self._credit == 0:
                break
            if self._command.connection.queued_bytes > HIGH_WATER:
                self._command.connection.when_drained(self.pump)
                self._register(False)
                return
            try:
                data = os.read(self._fd, min(DATA_BYTES, self._credit))
            except BlockingIOError:
                self.is_drained = True
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                if self._kind == Kind.STDOUT:
                    self._command.send(Kind.STDOUT_EOF)
                break
            self._credit -= len(data)
            self._command.send(self._kind, data)
        self._register(self.is_open and self._credit > 0)
        self._command.report_exit()

    def _register(self, wanted: bool) -> None:
        if wanted != self._is_registered:
            self._is_registered = wanted
            loop = self._command.loop
            _ = loop.add_reader(self._fd, self.pump) if wanted else loop.remove_reader(self._fd)

    def close(self) -> None:
        if self.is_open:
            self._register(False)
            os.close(self._fd)
            self._fd = -1
        self.is_drained = True


class _Input:
    """Standard input of a command. The follower sends at most the window."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._fd = -1
        self._is_writing = False
        self._queue: deque[bytes] = deque()
        self._queued = self._consumed = 0
        self._is_finished = False

    def connect(self, fd: int) -> None:
        self._fd = fd
        self._flush()

    def add(self, data: bytes) -> None:
        if self._queued + len(data) > WINDOW:
            raise FrameError("the follower sent more input than the window allows")
        self._queue.append(data)
        self._queued += len(data)
        if self._command.is_started:
            self._flush()

    def finish(self) -> None:
        self._is_finished = True
        if self._command.is_started:
            self._flush()

    def _flush(self) -> None:
        is_full = False
        while self._queue and not is_full:
            data = self._queue.popleft()
            try:
                # Input that no process reads is dropped.
                written = os.write(self._fd, data) if self._fd >= 0 else len(data)
            except BlockingIOError:
                written = 0
            except OSError:
                self._close_fd()
                written = len(data)
            if written < len(data):
                self._queue.appendleft(data[written:])
                is_full = True
            self._queued -= written
            self._consumed += written
        if self._consumed and (self._consumed >= WINDOW // 4 or not self._queue):
            self._command.send(Kind.CREDIT, credit_body(Kind.STDIN, self._consumed))
            self._consumed = 0
        if self._fd >= 0 and bool(self._queue) != self._is_writing:
            self._is_writing = bool(self._queue)
            loop = self._command.loop
            _ = loop.add_writer(self._fd, self._flush) if self._is_writing else loop.remove_writer(self._fd)
        if self._is_finished and not self._queue:
            self._close_fd()

    def _close_fd(self) -> None:
        if self._fd >= 0:
            if self._is_writing:
                self._command.loop.remove_writer(self._fd)
                self._is_writing = False
            os.close(self._fd)
            self._fd = -1


class Command:
    """One command of a follower."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection, opening: Frame) -> None:
        self.loop, self.connection = loop, connection
        self._opening = opening
        self._input = _Input(self)
        self._outputs: dict[int, _Output] = {}
        self._exit_code: int | None = None
        self.is_started = self.is_closed = False

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Send a frame to the follower."""
        if not self.is_closed:
            self.connection.send(self._opening._replace(kind=kind, body=body))

    def fail(self, problem: str) -> None:
        """Report that the command cannot be executed, and close it."""
        document = {"message": problem}
        opening = self._opening
        if not self.is_closed:
            self.connection.send(
                with_document(Kind.FAILED, document, node=opening.node, peer=opening.peer, stream=opening.stream)
            )
        self.close()

    def begin(self, started: Started) -> None:
        """Take over the pipes of the process."""
        self.is_started = True
        if started.problem:
            self.fail(started.problem)
            return
        self.send(Kind.OPENED)
        self._input.connect(started.stdin)
        if started.process is None:
            self.send(Kind.STDERR, started.errors)
            self.send(Kind.STDOUT_EOF)
            self.set_exit(started.exit_code)
            return
        for kind, fd in ((Kind.STDOUT, started.stdout), (Kind.STDERR, started.stderr)):
            self._outputs[kind] = _Output(self, kind, fd)
        if self.is_closed:
            self.close()

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the follower."""
        if frame.kind == Kind.STDIN:
            self._input.add(frame.body)
        elif frame.kind == Kind.STDIN_EOF:
            self._input.finish()
        elif frame.kind == Kind.CREDIT:
            kind, count = frame.credit()
            if output := self._outputs.get(kind):
                output.add_credit(count)

    def set_exit(self, code: int) -> None:
        """Note that the process has ended, and report it once its errors are sent."""
        self._exit_code = code
        if errors := self._outputs.get(Kind.STDERR):
            errors.pump()
        self.report_exit()

    def report_exit(self) -> None:
        """Report the end if it is due."""
        errors = self._outputs.get(Kind.STDERR)
        if self._exit_code is not None and (errors is None or errors.is_drained):
            self.send(Kind.EXIT, exit_body(self._exit_code))
            self._exit_code = None

    def close(self) -> None:
        """Close the pipes, as at the end of an SSH channel. The process may live on. Repeatable."""
        self.is_closed = True
        # Input that has arrived is delivered.
        self._input.finish()
        for output in self._outputs.values():
            output.close()


class Commands:
    """All commands of this node.

    :param home: folder in which they start
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, home: str, environment: Mapping[str, str]) -> None:
        self._loop, self._home, self._environment = loop, home, environment
        self._commands: dict[tuple[int, int], Command] = {}
        #: Processes that have not been reaped, with the callback for their exit status.
        self._processes: dict[subprocess.Popen[bytes], Callable[[int], None]] = {}
        self._starters = ThreadPoolExecutor(_STARTS, "dtrain-start")

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame for a command of this node."""
        key = (frame.peer, frame.stream)
        command = self._commands.get(key)
        if frame.kind == Kind.OPEN:
            if command is None:
                command = self._commands[key] = Command(self._loop, connection, frame)
                self._open(command, frame)
            return
        # A command may have ended or failed while the frame was on its way.
        if command is None:
            return
        if frame.kind == Kind.CLOSE:
            del self._commands[key]
            command.close()
            return
        try:
            command.handle(frame)
        except FrameError as error:
            del self._commands[key]
            command.fail(str(error))

    def _open(self, command: Command, frame: Frame) -> None:
        try:
            argv = frame.document().get("argv")
        except FrameError:
            argv = None
        if not isinstance(argv, list) or not argv or not all(isinstance(one, str) for one in argv):
            command.fail("argv must be a list of texts")
        elif sum(peer == frame.peer for peer, _ in self._commands) > COMMANDS_LIMIT:
            command.fail(f"it executes {COMMANDS_LIMIT} commands of this follower already")
        else:
            self._loop.create_task(self._start(command, argv))
            return
        del self._commands[frame.peer, frame.stream]

    async def _start(self, command: Command, argv: list[str]) -> None:
        started = await self._loop.run_in_executor(self._starters, start, argv, self._home, self._environment)
        command.begin(started)
        if started.process is not None:
            self._processes[started.process] = command.set_exit
            self.reap()

    def run(self, argv: list[str]) -> asyncio.Future[int]:
        """Start a command without a follower, and return a future for its exit status, -1 if it cannot start."""
        done: asyncio.Future[int] = self._loop.create_future()

        async def execute() -> None:
            started = await self._loop.run_in_executor(self._starters, self._start_alone, argv)
            if started is None:
                done.set_result(-1)
            else:
                self._processes[started] = done.set_result
                self.reap()

        self._loop.create_task(execute())
        return done

    def _start_alone(self, argv: list[str]) -> subprocess.Popen[bytes] | None:
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=2,
                cwd=self._home,
                env=dict(self._environment),
                start_new_session=True,
            )
        return None

    def reap(self) -> None:
        """Collect the exit status of processes that have ended."""
        for process, callback in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[process]
                callback(code)

    def close_peer(self, peer: int) -> None:
        """Close the commands of a follower that has gone."""
        for key in [key for key in self._commands if key[0] == peer]:
            self._commands.pop(key).close()

    def close_all(self) -> None:
        """Close all commands, because the way to their followers is cut."""
        for command in self._commands.values():
            command.close()
        self._commands.clear()
