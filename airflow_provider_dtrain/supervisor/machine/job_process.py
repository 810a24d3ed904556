"""The process of an external job on this node: nothing that the job started may live longer.

A scheduler that tracks processes by their parents (Slurm's proctrack/linuxproc) does not find those that have left
their parents, as supervisors do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..names import JOB_PROCESS
from .processes import Proc, is_dead, open_pidfd, read_proc


class JobProcess:
    """The process of the job, if there is one.

    :param environ: variables of a command that the process started
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        pid, _, start_time = environ.get(JOB_PROCESS, "").partition(" ")
        self._pid = int(pid) if pid.isdigit() else 0
        self._start_time = start_time
        #: A descriptor that can be read once the process has ended; -1: there is none.
        self.fd = open_pidfd(self._pid) if self._pid else -1

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def has_ended(self) -> bool:
        """True once the process of a job is gone. A process outside of jobs has none that could end."""
        if not self._pid:
            return False
        found: Proc | None = read_proc(self._pid)
        return found is None or str(found.start_time) != self._start_time or is_dead(found)
