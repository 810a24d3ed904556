"""Facts about this machine."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys

from ..file_access import read_text, user_name
from ..names import LINGER_DIR, WORD


def machine_id() -> str:
    """Return the permanent id of this machine."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        text = (read_text(path) or "").strip()
        if WORD.fullmatch(text):
            return text
    return "host-" + hashlib.sha256(socket.gethostname().encode()).hexdigest()[:24]


def mount_of(path: str) -> tuple[str, str]:
    """Return mount point and file system type of a path that may not exist yet."""
    path = os.path.realpath(path)
    best = ("", "")
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        point = unescape_mount(left.split()[4])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best


def unescape_mount(text: str) -> str:
    """Return a path of mountinfo with its octal escapes resolved."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution, None without one. Imports nothing of it.

    This process does not import from the user's folders, but its ranks do.
    """
    # Slow to import, and the control side waits for a channel's first line.
    import site
    from importlib import metadata

    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [*folders, *sys.path, site.getusersitepackages()]
    found = next(iter(metadata.distributions(name=name, path=path)), None)
    return found.version if found is not None else None


def memory_bytes() -> int:
    """Return the host's memory in bytes."""
    match = re.search(r"MemTotal:\s+(\d+) kB", read_text("/proc/meminfo") or "")
    return int(match.group(1)) * 1024 if match else 0


def lingers() -> bool:
    """Return whether the account's own systemd keeps running without a session (loginctl enable-linger)."""
    return os.path.exists(os.path.join(LINGER_DIR, user_name(os.getuid())))
