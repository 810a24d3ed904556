"""Control group of a run, which kills all of the run's processes at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from typing import Any

from ..file_access import read_text
from ..files.layout import RunFolder
from ..machine.host import lingers, machine_id, unescape_mount
from ..machine.processes import pid_namespace
from ..names import CGROUP_NAME


class Cgroup:
    """A run's own cgroup v2. One write kills every process in it, including detached ones."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, folder: RunFolder) -> Cgroup | None:
        """Return a new cgroup for a run, None if this account may not create one."""
        if os.environ.get("DTRAIN_NO_CGROUP"):
            return None
        parent = own_cgroup()
        # A group below the account's own systemd ends with the last session, unless the account lingers.
        if parent is None or (f"/user@{os.getuid()}.service/" in f"{parent}/" and not lingers()):
            return None
        # Containers of one machine may share the hierarchy and use the same run names.
        unique = f"{machine_id()} {pid_namespace()} {folder.path}"
        suffix = hashlib.sha256(unique.encode()).hexdigest()[:12]
        group = cls(os.path.join(parent, f"dtrain-{folder.name}-{suffix}"))
        try:
            group.remove()
            os.mkdir(group.path, 0o700)
            if os.path.exists(os.path.join(group.path, "cgroup.kill")):
                return group
            os.rmdir(group.path)
        except OSError:
            pass
        return None

    @classmethod
    def known(cls, path: Any) -> Cgroup | None:
        """Return the cgroup that a dead supervisor recorded, None unless it is the cgroup of a run."""
        if not isinstance(path, str) or not CGROUP_NAME.fullmatch(os.path.basename(path)):
            return None
        ours = any(os.path.dirname(path).startswith(mount) for mount, _ in cgroup_mounts())
        return cls(path) if ours and ".." not in path.split("/") and os.path.isdir(path) else None

    def enter(self) -> bool:
        """Move the calling process into the cgroup. Return whether it is inside."""
        return self._move(self.path) and self.is_inside()

    def leave(self) -> bool:
        """Move the calling process to the parent of the cgroup. Return whether it is outside."""
        return self._move(os.path.dirname(self.path)) and not self.is_inside()

    def is_inside(self) -> bool:
        """Return whether the calling process is in the cgroup."""
        return os.path.basename(self.path) in (read_text("/proc/self/cgroup") or "")

    @staticmethod
    def _move(path: str) -> bool:
        try:
            with open(os.path.join(path, "cgroup.procs"), "wb", buffering=0) as file:
                file.write(b"0")
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to all processes inside, including children forked meanwhile."""
        with contextlib.suppress(OSError), open(os.path.join(self.path, "cgroup.kill"), "wb", buffering=0) as file:
            file.write(b"1")

    def pids(self) -> list[int]:
        """Return the pids inside, including those in nested cgroups."""
        files = (os.path.join(path, "cgroup.procs") for path, _, _ in os.walk(self.path))
        return [int(pid) for file in files for pid in (read_text(file) or "").split() if pid.isdigit()]

    def remove(self) -> None:
        """Remove the cgroup and those that the ranks created in it. A cgroup with processes stays."""
        with contextlib.suppress(OSError):
            for path, _, _ in os.walk(self.path, topdown=False):
                os.rmdir(path)


def cgroup_mounts() -> list[tuple[str, str]]:
    """Return mount point and root of every cgroup v2 mount, including ``unified`` of a hybrid host."""
    found = []
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            found.append((unescape_mount(left.split()[4]), unescape_mount(left.split()[3])))
    return found


def controller_mounts(controller: str, root: str = "") -> list[tuple[str, str, bool]]:
    """Return the mounts of hierarchies that may have a controller: mount point, root, and whether it is cgroup v2.

    :param root: folder of ``proc``
    """
    found = []
    for line in (read_text(f"{root}/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        is_unified = right.startswith("cgroup2 ")
        if is_unified or (right.startswith("cgroup ") and controller in right.split()[-1].split(",")):
            found.append((unescape_mount(left.split()[4]), unescape_mount(left.split()[3]), is_unified))
    return found


def cgroup_folders(pid: int, controller: str, mounts: list[tuple[str, str, bool]], root: str = "") -> list[str]:
    """Return the folders of a process's cgroups for a controller, up to the root that this host shows.

    :param mounts: from :func:`controller_mounts`
    :param root: folder of ``proc`` and of the mounts
    """
    found = []
    for line in (read_text(f"{root}/proc/{pid}/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        is_of_v2 = not controllers
        if "/../" in f"{path}/" or not (is_of_v2 or controller in controllers.split(",")):
            continue
        for mount, top, is_unified in mounts:
            if is_unified != is_of_v2:
                continue
            inner = path[len(top) :] if top != "/" and f"{path}/".startswith(f"{top}/") else path
            while inner.strip("/"):
                found.append(f"{root}{mount}{inner}")
                inner = inner.rpartition("/")[0]
            found.append(f"{root}{mount}")
    return found


def own_cgroup() -> str | None:
    """Return the folder of this process's cgroup v2, None if it is missing or not writable."""
    folder = _own_folder()
    return folder if folder is not None and os.access(folder, os.W_OK) else None


def _own_folder() -> str | None:
    match = re.search(r"^0::(.*)$", read_text("/proc/self/cgroup") or "", re.MULTILINE)
    for mount, root in cgroup_mounts() if match else ():
        path = match.group(1) if match else "/"
        if root != "/":
            if path != root and not path.startswith(root + "/"):
                continue
            path = path[len(root) :]
        if "/../" not in path + "/":
            return os.path.normpath(mount + "/" + path)
    return None


def enclosing_cgroups(path: str | None) -> list[str]:
    """Return the folder of a cgroup and those above it, the innermost one first.

    :param path: None: the cgroup of this process
    """
    folder = path or _own_folder()
    mount = next((mount for mount, _ in cgroup_mounts() if f"{folder}/".startswith(f"{mount}/")), None)
    if folder is None or mount is None:
        return []
    found = [folder]
    while found[-1] != mount:
        found.append(os.path.dirname(found[-1]))
    return found
