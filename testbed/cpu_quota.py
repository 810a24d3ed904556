"""CPU quota for processes of this machine, in a control group of either version."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

PERIOD_US = 100_000


def controller_folder() -> Path | None:
    """Return the folder in which this process may create control groups with a CPU quota, None without one."""
    for mount in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup")):
        has_controller = (mount / "cpu.cfs_quota_us").exists() or (
            (mount / "cgroup.subtree_control").exists() and "cpu" in (mount / "cgroup.subtree_control").read_text()
        )
        if has_controller and os.access(mount, os.W_OK):
            return mount
    return None


class CpuQuota:
    """A control group whose processes get a part of one CPU. Leaving it moves them back.

    :param part: of one CPU, 0 to 1
    :raises OSError: this machine does not let this account create one
    """

    def __init__(self, part: float) -> None:
        self.part = part
        self._parent = controller_folder()
        #: Of the group while it exists.
        self.folder: Path | None = None

    def __enter__(self) -> Self:
        if self._parent is None:
            raise OSError("this account may not create control groups with a CPU quota")
        self.folder = self._parent / f"quota-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir()
        quota = int(self.part * PERIOD_US)
        if (self.folder / "cpu.max").exists():
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota))
        return self

    def add(self, pid: int) -> None:
        """Limit a process with its threads, and the processes that it starts later."""
        assert self.folder is not None
        (self.folder / "cgroup.procs").write_text(str(pid))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self.folder is not None
        assert self._parent is not None
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self._parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
