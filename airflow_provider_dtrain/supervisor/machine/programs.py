"""Programs of a rank: those of its processes that can act on a request to stop."""

from __future__ import annotations

import os
import re
import signal

from ..file_access import read_text
from .processes import Proc, descendants, environment_of, signals_in

#: Executables that run the commands of a user and wait for them. ``timeout`` sends what it gets to its process group,
#: and ``make`` to the shells of its recipes.
_PASSING = re.compile(r"((ba|da|a|z|fi|m?k|t?c)?sh|busybox|timeout|g?make)[0-9.-]*")
#: Variables that launchers of ranks set: PyTorch's agent and those built on it, DeepSpeed, Open MPI, MPICH, Slurm.
_RANK_VARIABLES = (
    b"TORCHELASTIC_RUN_ID", b"RANK", b"LOCAL_RANK", b"CROSS_RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK",
    b"SLURM_PROCID",
)  # fmt: skip
#: Processes that Python's ``multiprocessing`` starts with a command of their own.
_HELPER = re.compile(r"from multiprocessing\.|--multiprocessing-fork")


class ProcessTree:
    """The processes of a host at one moment.

    :param procs: every process by its pid
    :param launchers: processes that had started ranks earlier; new ones are added
    """

    def __init__(self, procs: dict[int, Proc], launchers: set[tuple[int, int]]) -> None:
        self._procs = procs
        self._launchers = launchers
        self._children: dict[int, list[Proc]] = {}
        for proc in descendants([os.getpid()], procs):
            self._children.setdefault(proc.ppid, []).append(proc)

    def programs(self, pid: int) -> list[Proc]:
        """Return the programs of a rank, [] if it is gone.

        The program is the process itself, with these exceptions. A process that has started ranks stands for these
        ranks. A shell, or a process that waits for a child and does not catch SIGTERM, stands for its children: for
        those that catch SIGTERM if there are any, else for itself if it catches it, else for all.

        :param pid: of the rank's own process
        """
        proc = self._procs.get(pid)
        return [] if proc is None else self._programs(proc)

    def _programs(self, proc: Proc) -> list[Proc]:
        children = self._children.get(proc.pid, [])
        is_passing = passes_on(proc)
        ranks = [] if is_passing else self._ranks(proc)
        if ranks and proc not in ranks:
            self._launchers.add(key_of(proc))
        if ranks or key_of(proc) in self._launchers:
            return [one for rank in ranks for one in (self._programs(rank) if rank is not proc else [rank])]
        if not children or not (is_passing or (waits(proc) and not acts(proc))):
            return [proc]
        below = [one for child in children for one in self._programs(child)]
        acting = [one for one in below if acts(one)]
        return acting or ([proc] if is_shell_with_trap(proc) else below)

    def _ranks(self, launcher: Proc) -> list[Proc]:
        """Return the processes that a process has started as ranks, with itself if it is the first of them."""
        own = environment_of(launcher.pid)
        found: list[tuple[Proc, dict[bytes, bytes]]] = []
        waiting = list(self._children.get(launcher.pid, ()))
        while waiting:
            proc = waiting.pop()
            env = environment_of(proc.pid)
            if not any(env.get(name, own.get(name)) != own.get(name) for name in _RANK_VARIABLES):
                waiting += self._children.get(proc.pid, ())
            elif not _HELPER.search(read_text(f"/proc/{proc.pid}/cmdline") or ""):
                found.append((proc, env))
        numbers = {env.get(b"LOCAL_RANK", b"0") for _, env in found}
        # A trainer that starts the other ranks of its host, e.g. Lightning, is the first rank itself.
        return [proc for proc, _ in found] + ([launcher] if found and b"0" not in numbers else [])


def key_of(proc: Proc) -> tuple[int, int]:
    """Return the identity of a process during a boot."""
    return proc.pid, proc.start_time


def acts(proc: Proc) -> bool:
    """Return whether a process has something to do on SIGTERM: a handler, or a thread that waits for the signal."""
    return signal.SIGTERM in signals_in(proc.pid, "SigCgt", "SigBlk")


def waits(proc: Proc) -> bool:
    """Return whether the main thread of a process waits for the end of a child."""
    return read_text(f"/proc/{proc.pid}/wchan") == "do_wait"


def passes_on(proc: Proc) -> bool:
    """Return whether a process only runs commands of the user: a shell, ``timeout`` or ``conda run``."""
    return _PASSING.fullmatch(_executable(proc)) is not None or _runs_conda(proc)


def is_shell_with_trap(proc: Proc) -> bool:
    """Return whether a process is a shell that has a trap for SIGTERM."""
    return passes_on(proc) and _executable(proc) != "timeout" and acts(proc)


def _executable(proc: Proc) -> str:
    """Return the file name of the program that a process executes, "" if it is hidden."""
    try:
        return os.path.basename(os.readlink(f"/proc/{proc.pid}/exe").removesuffix(" (deleted)"))
    except OSError:
        return ""


def _runs_conda(proc: Proc) -> bool:
    """Return whether a process is ``conda run``, which waits for its command without a wait of the kernel."""
    parts = (read_text(f"/proc/{proc.pid}/cmdline") or "").split("\0")
    return [os.path.basename(word) for word in parts[1:3]] == ["conda", "run"]
