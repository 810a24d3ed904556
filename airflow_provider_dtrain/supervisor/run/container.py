"""Container of a run on this host, as its supervisor sees it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from typing import Any, NamedTuple

from ..fields import parse_object
from ..file_access import read_json, sync_folder, write_json
from ..files.layout import RunFolder, container_root
from ..limits import CONTAINER_END_S, CONTAINER_START_S
from ..machine.container_runtime import remove_containers
from ..machine.processes import (
    Proc,
    all_procs,
    descendants,
    die_with_parent,
    identity,
    read_proc,
    send_signal,
)
from ..machine.sockets import send_message
from ..names import CONTAINER_LABEL, CONTAINER_RECORD, CONTAINER_SOCKET, Json
from ..refusal import Refused, fenced_refusal
from .ranks import Rank, tail_of

#: Output of the runtime and of the first process.
LOG = "container.log"
#: Of the kernel's ``struct ucred``: pid, uid and gid.
_CREDENTIALS = struct.Struct("=iII")
#: Characters of the log that a message quotes.
_SHOWN = 600


class ContainerMessage(NamedTuple):
    """A message from a process in the container, with the pid that this host knows it by."""

    fields: Json
    pid: int


class Container:
    """Container of a run on this host, and its first process, which starts the ranks there.

    The first process ends when the supervisor does, and the kernel then ends all processes of the container.

    :param request: ``runtime``, ``argv`` of its command, and ``modules`` that the image must have
    """

    def __init__(self, folder: RunFolder, request: Json) -> None:
        self.folder = folder
        self.request = request
        self.is_begun = False
        #: Pid of the runtime's command; 0: it has ended.
        self.client = 0
        self.client_status: int | None = None
        self.first: Proc | None = None
        self.socket: socket.socket | None = None
        self.buffer = b""
        #: Environment that the image gives to its programs.
        self.environment: dict[str, str] = {}
        #: Interpreter of the image, its version, and the versions of the modules.
        self.facts: Json = {}

    def start(self, path: list[str], locks: list[int]) -> None:
        """Start the container and its first process.

        :param path: folders in front of the image's PYTHONPATH
        :param locks: of the run's slots; the first process keeps them open
        :raises Refused: ``container``, the image or the runtime cannot be used
        """
        folder = self.folder
        if (reason := end_container(folder)) is not None:
            raise Refused("busy", f"A container of an earlier start is left: {reason}")
        os.makedirs(folder.file("home"), mode=0o700, exist_ok=True)
        self.is_begun = True
        # Durable: a fence after a crash of this process asks the runtime for the container.
        write_json(folder.file(CONTAINER_RECORD), {"runtime": self.request["runtime"], **identity()})
        sync_folder(folder.path)
        with socket.socket(socket.AF_UNIX) as listener:
            self._listen(listener)
            self._run_client()
            self.socket = self._accept(listener)
        self._send({"modules": self.request["modules"], "path": ":".join(path)}, locks)
        hello = self._hello()
        if hello["problems"]:
            reasons = "; ".join(str(one) for one in hello["problems"])
            raise Refused("container", f"The Python of the image cannot be used: {reasons}. Correct the image.")
        self.environment = {str(name): str(value) for name, value in hello["environment"].items()}
        self.facts = hello["hello"]
        write_json(
            folder.file(CONTAINER_RECORD), {"runtime": self.request["runtime"], **self._identity()}, durable=False
        )

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.folder.file(CONTAINER_SOCKET))
        # A name in the file system of sockets has at most 107 bytes.
        directory = os.open(self.folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        listener.bind(f"/proc/self/fd/{directory}/{CONTAINER_SOCKET}")
        os.close(directory)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.listen(1)

    def _run_client(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(self.folder.file(LOG), flags, 0o600)
        try:
            process = subprocess.Popen(
                self.request["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - the supervisor has one thread
            )
        except OSError as error:
            raise Refused("container", f"{self.request['runtime']} cannot be started: {error.strerror}.") from error
        finally:
            os.close(log)
        self.client = process.pid
        # This class waits for it.
        process.returncode = 0

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + CONTAINER_START_S
        while not select.select([listener], [], [], 0.02)[0]:
            if self.folder.has_tombstone:
                raise fenced_refusal(self.folder.name)
            self._check_client()
            if time.monotonic() > deadline:
                raise Refused("container", f"The container did not start within {CONTAINER_START_S:g} s: {self.log()}")
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(CONTAINER_START_S)
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        self.first = read_proc(pid) if pid > 0 else None
        if self.first is None:
            raise Refused("container", "The processes of the container are not visible on this host.")
        if uid != os.getuid():
            raise Refused(
                "container",
                f"The processes of the container have user id {uid}, but this account is {os.getuid()}. Its runtime "
                "maps user ids: use rootless podman, or disable userns-remap of docker.",
            )
        return connection

    def _hello(self) -> Json:
        found = self.receive(CONTAINER_START_S)
        if not found:
            self._check_client(CONTAINER_END_S)
            raise Refused("container", f"The first process of the container does not answer: {self.log()}")
        return found[0].fields

    def _check_client(self, wait_s: float = 0.0) -> None:
        """Raise if the command of the runtime has ended, which means that no container runs."""
        if self.wait_client(wait_s):
            raise Refused("container", self.end_text(), status=self.client_status)

    def wait_client(self, wait_s: float) -> bool:
        """Wait for the end of the runtime's command. Return whether it has ended."""
        until = time.monotonic() + wait_s
        while self.client:
            with contextlib.suppress(ChildProcessError):
                if self.note_status(*os.waitpid(self.client, os.WNOHANG)):
                    break
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def note_status(self, pid: int, status: int) -> bool:
        """Record the end of the runtime's command. Return whether the process that ended was it."""
        if not pid or pid != self.client:
            return False
        self.client = 0
        self.client_status = os.waitstatus_to_exitcode(status)
        return True

    def log(self) -> str:
        """Return the last lines that the runtime and the first process wrote."""
        text = tail_of(self.folder.file(LOG), 4096).decode("utf-8", "replace").strip()
        return text[-_SHOWN:] or "without a message"

    def end_text(self) -> str:
        """Return how the container ended."""
        return f"{self.request['runtime']} ended the container (exit code {self.client_status}): {self.log()}"

    def _identity(self) -> Json:
        return (
            {**identity(), "first": {"pid": self.first.pid, "start_time": self.first.start_time}} if self.first else {}
        )

    # Ranks.

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 once the first process is gone."""
        return -1 if self.socket is None else self.socket.fileno()

    def start_rank(self, rank: Rank, argv: list[str], env: dict[str, str], log: int, locks: list[int]) -> None:
        """Request the start of a rank."""
        self._send({"rank": rank.number, "argv": argv, "env": env}, [log, *locks])

    def _send(self, document: Json, fds: list[int]) -> None:
        if self.socket is None:
            return
        body = json.dumps(document).encode()
        # After the death of the first process, the next read reports it.
        with contextlib.suppress(OSError):
            send_message(self.socket, body, fds)

    def receive(self, wait_s: float = 0.0) -> list[ContainerMessage]:
        """Return the messages that arrive in time. Afterwards ``socket`` is None if the first process is gone."""
        until = time.monotonic() + wait_s
        found: list[ContainerMessage] = []
        while not found and self.socket is not None:
            if not select.select([self.socket], [], [], max(0.0, until - time.monotonic()))[0]:
                break
            found = self._receive(self.socket)
        return found

    def _receive(self, connection: socket.socket) -> list[ContainerMessage]:
        try:
            data, extra, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(_CREDENTIALS.size))
        except ConnectionError:
            data, extra = b"", []
        if not data:
            connection.close()
            self.socket = None
            return []
        pids = [_CREDENTIALS.unpack(content)[0] for _, kind, content in extra if kind == socket.SCM_CREDENTIALS]
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        found = (parse_object(line) for line in lines)
        return [ContainerMessage(fields, pids[0] if pids else 0) for fields in found if fields is not None]

    def processes(self) -> list[Proc]:
        """Return the living processes of the container besides the first one."""
        return [] if self.first is None else descendants([self.first.pid], all_procs())

    # Ending.

    def kill(self) -> str | None:
        """End all processes of the container. Return None once the runtime has confirmed it, else the reason."""
        if not self.is_begun:
            # A container with this label belongs to another supervisor.
            return None
        if self.first is not None:
            send_signal(self.first, signal.SIGKILL)
            # It removes the container. If it is killed meanwhile, podman needs seconds to notice the end.
            self.wait_client(CONTAINER_END_S)
        return _prove(self.folder, self.request["runtime"])


def label_of(folder: RunFolder) -> str:
    """Return the label of the containers of a run on this host."""
    return f"{CONTAINER_LABEL}={folder.path}"


def end_container(folder: RunFolder) -> str | None:
    """End the container of a run whose supervisor is dead. Return None if there is none left, else the reason.

    The runtime proves it. A runtime that does not answer proves nothing.
    """
    record: Any = read_json(folder.file(CONTAINER_RECORD))
    if record is None:
        return None
    if (first := container_root(folder)) is not None:
        send_signal(first, signal.SIGKILL)
    return _prove(folder, str(record.get("runtime")))


def _prove(folder: RunFolder, runtime: str) -> str | None:
    reason = remove_containers(runtime, label_of(folder))
    if reason is None:
        with contextlib.suppress(OSError):
            os.unlink(folder.file(CONTAINER_RECORD))
    return reason
