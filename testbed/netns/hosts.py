"""Sets of test hosts: creation, removal, and removal of the leftovers of dead runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from testbed.netns.host import NamespaceHost, new_tag, unmount_disks
from testbed.netns.network import Network, command, tear_down

#: Outside /tmp and /var/tmp, because each host has its own.
BASE = Path("/var/lib/dtrain-test-hosts")


def missing() -> str | None:
    """Return the reason why test hosts cannot run on this machine, None when they can."""
    if os.geteuid() != 0:
        return "test hosts need root"
    path = f"{os.defpath}:/usr/sbin:/sbin"
    lacking = [name for name in ("ip", "unshare", "nsenter", "sshd", "ssh-keygen") if not shutil.which(name, path=path)]
    if lacking:
        return f"test hosts need {', '.join(lacking)} (packages iproute2, util-linux, openssh-server)"
    if not Path("/etc/machine-id").is_file():
        return "test hosts need /etc/machine-id as a mount point for their own"
    return None


class NamespaceHosts:
    """Test hosts ``ns-0``, ``ns-1`` ... on a separate network. Usable as a context manager.

    :param count: number of hosts
    :param slots: CPU slots that tests should register per host
    :param shared_home: one home directory for all, as on clusters with NFS homes
    :param max_startups: sshd's MaxStartups
    :param max_sessions: sshd's MaxSessions
    :param sshd_extra: more lines for sshd_config
    :param disk_mib: size of each host's /var/tmp, a tmpfs of its own; None: a folder of this machine
    """

    def __init__(
        self,
        count: int = 3,
        slots: int = 2,
        shared_home: bool = False,
        *,
        max_startups: str = "100",
        max_sessions: int = 10,
        sshd_extra: str = "",
        disk_mib: int | None = None,
    ) -> None:
        reason = missing()
        if reason:
            raise RuntimeError(reason)
        self.count, self.slots, self.shared_home = count, slots, shared_home
        self.tag = new_tag()
        self.folder = BASE / self.tag
        self._owner = _claim(self.folder)
        sshd: dict[str, Any] = {"max_startups": max_startups, "max_sessions": max_sessions, "sshd_extra": sshd_extra}
        sshd["disk_mib"] = disk_mib
        try:
            self._make(sshd)
        except BaseException:
            self.close()
            raise

    def _make(self, sshd: dict[str, Any]) -> None:
        self.private_key = self.folder / "id_ed25519"
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(self.private_key))
        authorized = self.private_key.with_suffix(".pub").read_text()
        with _one_at_a_time():
            remove_stale()
            network = Network(self.tag, self.count)
            network.up([f"ns-{i}" for i in range(self.count)])
        #: Address of this machine in the network of the hosts.
        self.gateway = network.gateway
        self._hosts = [self._host(network, i) for i in range(self.count)]
        for host in self._hosts:
            host.prepare(authorized=authorized, **sshd)
            host.boot()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(NamespaceHost.await_sshd, self._hosts))

    def _host(self, network: Network, index: int) -> NamespaceHost:
        folder = self.folder / f"host{index}"
        home = self.folder / "home" if self.shared_home else folder / "home"
        return NamespaceHost(network, index, f"ns-{index}", folder, home, self.private_key)

    def host(self, index: int) -> NamespaceHost:
        """Return a host by its index."""
        return self._hosts[index]

    def __iter__(self) -> Iterator[NamespaceHost]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return self.count

    def close(self) -> None:
        """Stop the hosts and remove everything that belongs to them. Safe to call repeatedly."""
        for host in getattr(self, "_hosts", []):
            host.crash()
        tear_down(self.tag)
        unmount_disks(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.close()
        with contextlib.suppress(OSError):
            # The lock file is removed last, and only when no other set exists.
            if not [entry for entry in BASE.iterdir() if entry.is_dir()]:
                shutil.rmtree(BASE)

    def __enter__(self) -> NamespaceHosts:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _claim(folder: Path) -> IO[str]:
    """Create the folder of a set and lock its owner file for the lifetime of this process."""
    with _one_at_a_time():
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        owner = (folder / "owner").open("w")
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return owner


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    BASE.mkdir(parents=True, exist_ok=True)
    with (BASE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_stale() -> list[str]:
    """Remove the sets whose owner process is dead, and return their tags.

    A living owner holds a lock on its set.
    """
    removed = []
    for folder in BASE.glob("dt*"):
        with contextlib.suppress(OSError), (folder / "owner").open("r+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end_leftovers(folder)
            tear_down(folder.name)
            unmount_disks(folder)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def _end_leftovers(folder: Path) -> None:
    """Kill the processes whose command line names the folder: the hosts' init processes and their parents."""
    mark = f"{folder}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                program = Path(os.readlink(entry / "exe")).name
                if program in ("sshd", "unshare") and any((word + b"/").startswith(mark) for word in words):
                    os.kill(int(entry.name), 9)
