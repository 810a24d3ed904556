"""Podman with storage, processes and networks of its own, all of which end with it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from testbed.podman_settings import write_settings

#: Programs -> Debian packages.
PROGRAMS = {
    "aardvark-dns": "aardvark-dns",
    "catatonit": "catatonit",
    "mmdebstrap": "mmdebstrap",
    "netavark": "netavark",
    "nsenter": "util-linux",
    "podman": "podman",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
_FOLDERS = "/usr/libexec/podman:/usr/lib/podman"
_CLONE_NEWNET = 0x40000000
_START_S = 30.0
_SET_UP = """
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up
touch "$1"
exec "$2" -P
"""


def why_no_own_podman() -> str | None:
    """Return the reason why this machine has no such podman, None if it has one."""
    if os.geteuid() != 0:
        return "namespaces for podman need root"
    missing = [f"{program} ({package})" for program, package in PROGRAMS.items() if _program(program) is None]
    return f"missing programs (Debian packages): {', '.join(missing)}" if missing else None


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_FOLDERS}")


class Podman:
    """One podman. If this process is killed, its containers end with it.

    :param folder: empty folder for images, volumes and settings, on a disk
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings()
        ready = folder / "ready"
        own = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
        self._unshare = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *own, "sh", "-c", _SET_UP, "sh", str(ready), str(_program("catatonit"))],
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_S
        while not ready.exists():
            if self._unshare.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the namespaces for podman were not made: exit code {self._unshare.poll()}")
            time.sleep(0.05)
        (child,) = psutil.Process(self._unshare.pid).children()
        self._init_pid = child.pid

    def _settings(self) -> None:
        places = {name: self.folder / name for name in ("storage", "networks", "tmp")}
        for place in places.values():
            place.mkdir()
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{places["storage"]}"\nrunroot = "/run/containers/storage"\n'
        )
        settings = write_settings(
            self.folder,
            engine=['cgroup_manager = "cgroupfs"', 'events_logger = "file"'],
            network=['network_backend = "netavark"', f'network_config_dir = "{places["networks"]}"'],
        )
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(settings),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            # Podman then leaves the health checks to `podman healthcheck run`.
            "DISABLE_HC_SYSTEMD": "true",
            "TMPDIR": str(places["tmp"]),
        }

    def argv(self, *argv: str, online: bool = False, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs a command inside.

        :param online: with the network of this machine instead of the own one, e.g. to build images
        """
        spaces = ["--mount", "--pid"] if online else ["--mount", "--pid", "--net"]
        return ["nsenter", "--target", str(self._init_pid), *spaces, f"--wd={cwd or self.folder}", "--", *argv]

    def run(
        self,
        *argv: str,
        online: bool = False,
        cwd: Path | None = None,
        timeout_s: float = 120.0,
        check: bool = True,
        variables: dict[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, and return it with its output.

        :raises AssertionError: it failed, and ``check`` is true
        """
        done = subprocess.run(
            self.argv(*argv, online=online, cwd=cwd),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.environment, **(variables or {})},
            stdin=stdin,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)}: {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
        return done

    def import_image(self, name: str, tar: Path, changes: Sequence[str] = ()) -> None:
        """Make an image of an archive of files."""
        options = [part for change in changes for part in ("--change", change)]
        self.run("podman", "import", *options, str(tar), name, timeout_s=300)

    def image(self, name: str) -> dict[str, object]:
        """Return the description of an image."""
        (found,) = json.loads(self.run("podman", "image", "inspect", name).stdout)
        return dict(found)

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Let the current thread open its connections in the network of the containers."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as before, open(f"/proc/{self._init_pid}/ns/net") as inside:
            _enter(libc, inside.fileno())
            try:
                yield
            finally:
                _enter(libc, before.fileno())

    def close(self) -> None:
        """End all processes and remove all files."""
        self._unshare.kill()
        self._unshare.wait(timeout=60)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self._init_pid).wait(timeout=60)
        shutil.rmtree(self.folder)


def _enter(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
