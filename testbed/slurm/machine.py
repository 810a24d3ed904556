"""Process namespaces, one per node: whatever a job starts ends with its node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.netns.host import NamespaceHost
from testbed.standalone import wait_until

#: First process of a namespace. The kernel reaps the children of a process that ignores SIGCHLD.
_INIT = "trap '' CHLD; exec sleep infinity"
_NAMED = "set -e; hostname {name}; for file in hosts resolv.conf; do mount --bind {etc}/$file /etc/$file; done; "
_MARK = "dtrain-slurm:"


class Machine:
    """A PID namespace for daemons and the processes that they start.

    The argument of its ``unshare`` names folder and machine, so that a later process finds and ends it.

    :param folder: folder of the cluster
    :param name: name of the machine, unique in the cluster
    :param network: name of its network namespace, whose hosts then know it by its own name; without, it has this
        machine's network and name
    """

    def __init__(self, folder: Path, name: str, network: str = "") -> None:
        self.name, self._mark, self._network = name, f"{_MARK}{folder}:{name}", network

    def boot(self) -> None:
        """Create the namespace, unless it exists.

        :raises RuntimeError: the kernel refused it
        """
        if self.init_pid:
            return
        user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
        argv, init = ["unshare", *user, "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"], _INIT
        if self._network:
            # Not by `ip netns exec`, which hides the cgroups.
            argv = ["nsenter", f"--net=/run/netns/{self._network}", *argv, "--uts"]
            init = _NAMED.format(name=self.name, etc=f"/etc/netns/{self._network}") + init
        process = subprocess.Popen(
            [*argv, "sh", "-c", init, self._mark], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True, cwd="/",
        )  # fmt: skip
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: self.init_pid or process.poll() is not None, timeout_s=10, what="unshare", poll_s=0.01)
        if not self.init_pid:
            process.kill()
            raise RuntimeError(f"A PID namespace could not be created: {process.communicate()[1].decode().strip()}")

    @property
    def init_pid(self) -> int:
        """Pid of the namespace's first process, 0 while the machine is down."""
        for pid in _marked(self._mark):
            for child in _children(pid):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{child}/comm").read_text() == "sleep\n":
                        return child
        return 0

    def crash(self) -> None:
        """End every process of the machine at once, as a power cut does."""
        for pid in _marked(self._mark):
            _end(pid)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """Return a command line that runs another one inside."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        own = ["--net", "--uts"] if self._network else []
        return ["nsenter", f"--target={self.init_pid}", *user, *own, "--pid", "--mount", "--", *argv]

    def run(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start a daemon inside, with its output in a file.

        It is no child of ``nsenter``, which stops itself when its child is stopped, and then does not reap it: the
        namespace could not end.
        """
        with log.open("ab") as output:
            subprocess.run(
                self.enter(["setsid", "--fork", *argv]),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment), cwd="/", check=True,
            )  # fmt: skip

    def pids(self) -> list[int]:
        """Return the processes inside except the first one, by their pid outside."""
        init = self.init_pid
        inside = _namespace(init) if init else ""
        return [pid for pid in _all_pids() if inside and pid != init and _namespace(pid) == inside]

    def daemon(self, program: str) -> int:
        """Return the pid outside of a program inside, 0 when it is not running."""
        pids = (pid for pid in self.pids() if any(Path(one).name == program for one in _arguments(pid)[:1]))
        return min(pids, default=0)

    def end(self, program: str, *, by: signal.Signals = signal.SIGTERM) -> None:
        """End one program inside and wait until it has ended. The processes that it started are not signalled.

        :raises TimeoutError: it still ran after 30 s
        """
        pid = self.daemon(program)
        if pid:
            # A stopped program ends once it continues, as systemd does with a unit that it stops.
            for one in (by, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, one)
            what = f"end of {program} on {self.name}"
            wait_until(lambda: self.daemon(program) != pid, timeout_s=30, what=what, poll_s=0.05)


class HostMachine(Machine):
    """A test host as a node: with network, host name, boot id and /tmp of its own."""

    def __init__(self, folder: Path, name: str, host: NamespaceHost) -> None:
        super().__init__(folder, name)
        self.host = host

    def boot(self) -> None:
        if not self.host.is_up:
            self.host.boot()
            self.host.await_sshd()

    @property
    def init_pid(self) -> int:
        return self.host.init_pid

    def crash(self) -> None:
        self.host.crash()

    def enter(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self.init_pid}", "--uts", "--mount", "--pid", "--net", "--", *argv]


def end_all(folder: Path) -> None:
    """End all machines of a cluster, also of one whose starter was killed.

    :raises TimeoutError: a process still existed after 60 s
    """
    for pid in _marked(f"{_MARK}{folder}:", prefix=True):
        _end(pid)


def _end(pid: int) -> None:
    """End an ``unshare`` and with it the namespace, and wait until all its processes have ended."""
    children = _children(pid)
    inside = {_namespace(child) for child in children} - {"", _namespace(os.getpid())}
    for one in (*children, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    what = f"end of the processes below {pid}"
    wait_until(lambda: not any(_namespace(one) in inside for one in _all_pids()), timeout_s=60, what=what, poll_s=0.02)


def _marked(mark: str, *, prefix: bool = False) -> list[int]:
    found = []
    for pid in _all_pids():
        arguments = _arguments(pid)
        # A machine with a network is an `nsenter` before it is an `unshare`.
        is_ours = arguments[:1] in (["unshare"], ["nsenter"])
        if is_ours and (arguments[-1] == mark or (prefix and arguments[-1].startswith(mark))):
            found.append(pid)
    return found


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _namespace(pid: int) -> str:
    """Return the PID namespace of a process, empty for one that has ended and waits for its parent."""
    try:
        is_zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1] == ["Z"]
        return "" if is_zombie else os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
