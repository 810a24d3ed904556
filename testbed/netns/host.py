"""One test host: its own namespaces for network, processes, mounts and host name, with an sshd inside."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from testbed.netns.network import Network, command, ip

_START_TIMEOUT_S = 20.0

#: Folders of the interpreter that runs the tests and of the code under test; either may lie below /tmp.
_VISIBLE = sorted({sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2])})

# Arguments: folder of this host, its name, sshd, then the paths that must stay visible although they lie below /tmp
# or /var/tmp. /run is a fresh tmpfs, so sshd finds its folder empty.
_INIT = """set -e
dir="$1" sshd="$3"
hostname "$2"
shift 3
for path in "$@"; do
    case "$path" in
        /var/tmp/*) seen="$dir/var-tmp/${path#/var/tmp/}" ;;
        /tmp/*) seen="$dir/tmp/${path#/tmp/}" ;;
        *) continue ;;
    esac
    mkdir -p "$seen"
    mount --rbind "$path" "$seen"
done
mount --rbind "$dir/tmp" /tmp
mount --rbind "$dir/var-tmp" /var/tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
mkdir -m 1777 /run/lock
for file in /etc/passwd /etc/machine-id /proc/sys/kernel/random/boot_id; do
    mount --bind "$dir/$(basename $file)" $file
done
cd /
exec "$sshd" -D -e -f "$dir/sshd_config"
"""

_SSHD_CONFIG = """\
ListenAddress {address}:22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
PidFile none
PrintMotd no
MaxStartups {max_startups}
MaxSessions {max_sessions}
{extra}
"""


class NamespaceHost:
    """A host that tests can reach by SSH, crash, disconnect and inspect."""

    user = "root"
    port = 22
    #: Interpreter inside the host: the one that runs the tests.
    python = sys.executable

    def __init__(self, network: Network, index: int, name: str, folder: Path, home: Path, private_key: Path) -> None:
        self._network, self._index = network, index
        self.name, self.folder, self.home, self.private_key = name, folder, home, private_key
        self.address = network.address(index)
        self._process: subprocess.Popen[bytes] | None = None
        self._init_pid = 0

    def prepare(
        self, *, authorized: str, max_startups: str, max_sessions: int, sshd_extra: str, disk_mib: int | None
    ) -> None:
        """Create the files and folders of the host before its first boot."""
        for name in ("tmp", "var-tmp"):
            (self.folder / name).mkdir(parents=True)
        if disk_mib:
            disk = str(self.folder / "var-tmp")
            command("mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "tmpfs", disk)
        for name in ("tmp", "var-tmp"):
            (self.folder / name).chmod(0o1777)
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.folder / "authorized_keys").write_text(authorized)
        (self.folder / "machine-id").write_text(uuid.uuid4().hex + "\n")
        (self.folder / "passwd").write_text(_passwd(self.home))
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(self.folder / "host_key"))
        settings = {"address": self.address, "folder": self.folder, "extra": sshd_extra}
        settings["extra"] = sshd_extra.replace("{folder}", str(self.folder))
        text = _SSHD_CONFIG.format(max_startups=max_startups, max_sessions=max_sessions, **settings)
        (self.folder / "sshd_config").write_text(text)

    @property
    def host_key(self) -> str:
        """Key type and key, in the form of the ``host_key`` extra of a connection."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def airflow_conn(self, *, host_key: bool = True, **extra: object) -> str:
        """Return the JSON for an ``AIRFLOW_CONN_...`` variable."""
        known: dict[str, object] = {"key_file": str(self.private_key), "look_for_keys": False}
        if host_key:
            known["host_key"] = self.host_key
        document = {"conn_type": "ssh", "host": self.address, "login": self.user, "port": self.port}
        return json.dumps({**document, "extra": {**known, **extra}})

    def boot(self) -> None:
        """Start the host with a new boot id and an empty /tmp.

        Call :meth:`await_sshd` to wait until it is up.
        """
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        _empty(self.folder / "tmp")
        sshd = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin") or "sshd"
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._network.namespace(self._index),
                 "unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
                 "/bin/sh", "-c", _INIT, "init", str(self.folder), self.name, sshd, *_VISIBLE],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def await_sshd(self) -> None:
        """Wait until sshd answers.

        :raises RuntimeError: the host ended, or sshd did not answer within 20 s
        """
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._greets():
            dead = self._process is None or self._process.poll() is not None
            if dead or time.monotonic() > deadline:
                log = (self.folder / "sshd.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"test host {self.name} did not start:\n{log}")
            time.sleep(0.01)
        assert self._process is not None
        pid = self._process.pid
        self._init_pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _greets(self) -> bool:
        try:
            with socket.create_connection((self.address, self.port), timeout=1) as sock:
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    @property
    def is_up(self) -> bool:
        """True while the host is running."""
        return self._process is not None and self._process.poll() is None

    def crash(self) -> None:
        """End every process of the host at once, as a power cut does."""
        if self._process is None:
            return
        # The namespace's init becomes a zombie only after the kernel has killed every other process in it.
        # Its parent, unshare, ends after that.
        _kill(self._init_pid or self._process.pid)
        self._process.wait(timeout=60)
        self._process, self._init_pid = None, 0

    def reboot(self) -> None:
        """Crash the host and boot it with a new boot id."""
        self.crash()
        self.boot()
        self.await_sshd()

    def partition(self) -> None:
        """Disconnect the host from the network."""
        ip("link", "set", self._network.link(self._index), "down")

    def heal(self) -> None:
        """Reconnect the host to the network."""
        ip("link", "set", self._network.link(self._index), "up")

    def throttle(self, rate: str) -> None:
        """Limit the bandwidth towards the host, e.g. to ``10mbit``. An empty rate removes the limit."""
        device = self._network.link(self._index)
        command("tc", "qdisc", "del", "dev", device, "root", check=False)
        if rate:
            limit = ["rate", rate, "burst", "64kb", "latency", "400ms"]
            command("tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)

    @property
    def init_pid(self) -> int:
        """Pid of the host's init in the outer namespace, 0 while the host is down."""
        return self._init_pid

    @property
    def pid_namespace(self) -> str:
        """Pid namespace of the host's processes, empty while the host is down."""
        return _pid_namespace(self._init_pid) if self._init_pid else ""

    def pids(self) -> list[int]:
        """Return every process of the host except its init, by its pid in the outer namespace."""
        inside = self.pid_namespace
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in found if pid != self._init_pid and inside and _pid_namespace(pid) == inside]

    def commands(self) -> dict[int, list[str]]:
        """Return the arguments of every process of the host, see :meth:`pids`. Processes that end are left out."""
        found = {}
        for pid in self.pids():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape")
                found[pid] = line.rstrip("\0").split("\0")
        return found

    def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command inside the host, in its home folder, without SSH."""
        enter = ["nsenter", f"--target={self._init_pid}", "--uts", "--mount", "--pid", "--net"]
        path = f"PATH={os.defpath}:/usr/sbin:/sbin"
        env = ["env", "-i", "-C", str(self.home), f"HOME={self.home}", "USER=root", path]
        return subprocess.run([*enter, *env, *argv], input=stdin, capture_output=True, timeout=timeout_s, check=False)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _passwd(home: Path) -> str:
    """Return this machine's /etc/passwd with root's home in the host's own folder."""
    lines = Path("/etc/passwd").read_text().splitlines()
    others = [line for line in lines if not line.startswith("root:")]
    return "\n".join([f"root:x:0:0:root:{home}:/bin/bash", *others]) + "\n"


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def new_tag() -> str:
    """Return a random prefix for the names of one set, short enough for names of network links."""
    return f"dt{secrets.token_hex(3)}"


def unmount_disks(folder: Path) -> None:
    """Unmount the disks of a set of hosts lazily, even while processes use them."""
    for disk in folder.glob("host*/var-tmp"):
        if disk.is_mount():
            command("umount", "-l", str(disk), check=False)
