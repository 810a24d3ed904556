"""Channel on which Airflow's parent process reads the log records of this process."""

from __future__ import annotations

import functools
import os
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

#: ``SIOCOUTQ`` of Linux: memory of a socket that its peer has not read yet.
_SIOCOUTQ = 0x5411


class LogChannel:
    """Receipt for the records that Airflow's parent has read among those that this process logged.

    A trigger and a task write their records into a socket, and their parent writes them into the task log. The kernel
    knows how much the parent has not read. The parent has one thread, so its next answer to any request proves that it
    has written what it has read.

    :param fd: the socket; None = there is none, and each record is written when it is logged
    :param ask: sends a request to the parent and returns once it has answered; None = no request is needed
    """

    def __init__(self, fd: int | None, ask: Callable[[], object] | None = None) -> None:
        self._fd = fd
        self._ask = ask

    def is_read(self) -> bool:
        """Return whether the parent has read every record, or True when the kernel cannot tell."""
        if self._fd is None or sys.platform != "linux":
            return True
        import fcntl

        try:
            return bool(struct.unpack("i", fcntl.ioctl(self._fd, _SIOCOUTQ, b"\0" * 4))[0] == 0)
        except OSError:
            return True

    def confirm(self) -> bool:
        """Return whether the parent has written all that it had read. Blocks until the parent answers."""
        if self._ask is None:
            return True
        try:
            self._ask()
        except Exception:  # whatever Airflow's client raises while its process ends
            return False
        return True


def airflow_channel() -> LogChannel:
    """Return the channel of this process, as Airflow has set it up."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    comms = getattr(runner, "SUPERVISOR_COMMS", None)
    structlog = sys.modules.get("structlog")
    if comms is None or structlog is None:
        return LogChannel(None)
    output = getattr(structlog.get_config().get("logger_factory"), "io", None)
    try:
        fd = output.fileno() if output is not None else -1
        travels = fd >= 0 and stat.S_ISSOCK(os.fstat(fd).st_mode)
    except (OSError, ValueError, AttributeError):
        return LogChannel(None)
    return LogChannel(fd, functools.partial(_ask, comms)) if travels else LogChannel(None)


def _ask(comms: Any) -> None:
    """Send the parent a request that changes nothing: an empty secret is not masked."""
    from airflow.sdk.execution_time.comms import MaskSecret

    comms.send(MaskSecret(value="", name=None))
