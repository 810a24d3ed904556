"""Commands of the container runtimes: podman, docker and apptainer."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import IO, NamedTuple

from ..limits import RUNTIME_BYTES, RUNTIME_S
from ..refusal import Refused
from .processes import die_with_parent

#: Programs that run containers, the preferred one first.
RUNTIMES = ("podman", "docker", "apptainer")
#: Most bytes of a program's output that a message quotes.
_SHOWN = 600
_ID = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
#: Time for the end of a killed command.
_KILL_S = 0.5


class Done(NamedTuple):
    """A command that has ended. The status is None if it was killed because it did not answer in time."""

    status: int | None
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The last lines of standard error, or the status."""
        text = self.errors.strip() or self.output.strip()
        return text[-_SHOWN:] or f"exit status {self.status}"


def find_runtime(wanted: str | None) -> str | None:
    """Return the runtime that this host uses, None if it has none, or not the wanted one."""
    return next((name for name in RUNTIMES if wanted in (None, name) and shutil.which(name)), None)


def run_command(
    argv: list[str], timeout_s: float, env: Mapping[str, str] | None = None, descriptors: tuple[int, ...] = ()
) -> Done:
    """Run a command of a runtime, and keep the first :data:`RUNTIME_BYTES` of its output and the end of its errors.

    A command that hangs is killed with its children, and is not waited for if it cannot be killed.

    :param descriptors: that the command inherits
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it only calls the kernel
        )
    except OSError as error:
        return Done(127, "", f"{argv[0]}: {error.strerror}")
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_s
    output, errors = bytearray(), bytearray()
    with process.stdout, process.stderr:
        is_over = _read(process.stdout, process.stderr, output, errors, deadline)
    if is_over:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    if process.returncode is not None:
        return Done(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_S)
    return Done(None, "", f"'{' '.join(argv[:3])}' did not answer within {timeout_s:g} s")


def _read(out: IO[bytes], err: IO[bytes], output: bytearray, errors: bytearray, deadline: float) -> bool:
    """Read both streams until their ends. Return False if they have not ended in time."""
    waiting: list[IO[bytes]] = [out, err]
    while waiting:
        ready = select.select(waiting, [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            return False
        for stream in ready:
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                waiting.remove(stream)
            elif stream is out:
                output += data[: RUNTIME_BYTES - len(output)]
            else:
                errors += data
                del errors[: -4 * _SHOWN]
    return True


def containers(runtime: str, label: str) -> list[str]:
    """Return the ids of the containers with a label, running or not.

    :raises Refused: ``container``, the runtime does not answer
    """
    done = run_command([runtime, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"], RUNTIME_S)
    if done.status != 0:
        raise Refused("container", f"{runtime} cannot list its containers: {done.reason}.")
    found = done.output.split()
    if not all(_ID.fullmatch(one) for one in found):
        raise Refused("container", f"{runtime} lists its containers in an unknown form: {done.output.strip()[:80]!a}.")
    return found


def remove_containers(runtime: str, label: str) -> str | None:
    """Kill and remove the containers with a label. Return None once the runtime has none, else the reason.

    Apptainer keeps no containers: theirs are ordinary processes below the one that started them.
    """
    if runtime not in ("podman", "docker"):
        return None
    try:
        found = containers(runtime, label)
        if not found:
            return None
        # Without a time, podman waits 10 s between SIGTERM and SIGKILL. Docker sends SIGKILL at once.
        at_once = ["--time", "0"] if runtime == "podman" else []
        done = run_command([runtime, "rm", "--force", *at_once, *found], RUNTIME_S)
        if not containers(runtime, label):
            return None
    except Refused as error:
        return error.message
    return f"{runtime} has not ended container {found[0][:12]}: {done.reason}"
