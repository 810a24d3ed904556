"""Accounting of a cluster: slurmdbd and a MariaDB of their own, unpacked from Debian's packages and not installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testbed.slurm.machine import Machine
from testbed.standalone import wait_until

PACKAGES = (
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "mariadb-client-core", "mariadb-common", "libmariadb3",
    "libaio1", "liburing2",
)  # fmt: skip
_START_TIMEOUT_S = 60.0


def make_root(folder: Path) -> None:
    """Download the packages of the accounting for this machine's Slurm, and unpack them.

    :param folder: folder that does not exist, is empty, or holds a complete root, which is kept
    :raises RuntimeError: a program failed; the message has its output
    """
    if (folder / ".complete").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "packages").mkdir(parents=True)
    _run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES, cwd=folder / "packages")
    for package in (folder / "packages").glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(folder))
    shutil.rmtree(folder / "packages")
    (folder / ".complete").touch()


def default_root() -> Path:
    """Return the folder in which the packages are kept between runs."""
    home = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return home / "dtrain-slurm-accounting"


class Accounting:
    """MariaDB on a socket, and slurmdbd on a port of this machine, beside the controller of a cluster.

    :param folder: folder of the cluster
    :param root: folder of :func:`make_root`
    :param machine: where the daemons run
    """

    def __init__(self, folder: Path, root: Path, machine: Machine) -> None:
        self.folder, self.root, self._machine = folder, root, machine

    @property
    def _socket(self) -> Path:
        return self.folder / "run/mariadb"

    @property
    def _environment(self) -> Mapping[str, str]:
        libraries = ":".join(str(one) for one in (*self.root.glob("usr/lib/*-linux-gnu"), *self.root.glob("lib/*-gnu")))
        # The client library of slurmdbd has no option for the socket.
        paths = {"LD_LIBRARY_PATH": libraries, "MYSQL_UNIX_PORT": str(self._socket)}
        return {"PATH": f"{os.defpath}:/usr/sbin:/sbin", "SLURM_CONF": str(self.folder / "slurm.conf"), **paths}

    def start(self, port: int) -> None:
        """Start both daemons, and wait until slurmdbd answers.

        :param port: of slurmdbd
        :raises TimeoutError: one of them did not start
        """
        data = self.folder / "mariadb"
        data.mkdir()
        user = pwd.getpwuid(os.geteuid()).pw_name
        own = [f"--datadir={data}", f"--user={user}"]
        install = [str(self.root / "usr/bin/mariadb-install-db"), "--no-defaults", f"--basedir={self.root}/usr", *own]
        _run(*install, "--auth-root-authentication-method=normal", "--skip-test-db", env=self._environment)
        server = [str(self.root / "usr/sbin/mariadbd"), "--no-defaults", f"--basedir={self.root}/usr", *own]
        log = self.folder / "log"
        self._machine.run(
            [*server, f"--socket={self._socket}", "--skip-networking"], log / "mariadbd.out", self._environment
        )
        wait_until(self._socket.is_socket, timeout_s=_START_TIMEOUT_S, what="MariaDB's socket", poll_s=0.1)
        self._write_configuration(port, user)
        program = str(self.root / "usr/sbin/slurmdbd")
        self._machine.run([program, "-D"], log / "slurmdbd.out", self._environment)
        wait_until(self._answers, timeout_s=_START_TIMEOUT_S, what="slurmdbd's answer", poll_s=0.5)

    def _write_configuration(self, port: int, user: str) -> None:
        plugins = next(path for path in Path("/usr/lib").glob("*-linux-gnu/slurm-wlm") if path.is_dir())
        of_database = next(self.root.glob("usr/lib/*-linux-gnu/slurm-wlm"))
        lines = {
            "AuthType": "auth/munge", "AuthInfo": f"socket={self.folder}/munge/socket", "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1", "DbdPort": port, "SlurmUser": user, "LogFile": self.folder / "log/slurmdbd.log",
            "PidFile": self.folder / "run/slurmdbd.pid", "PluginDir": f"{of_database}:{plugins}",
            "StorageType": "accounting_storage/mysql", "StorageHost": "localhost", "StorageUser": user,
            "StorageLoc": "accounting",
        }  # fmt: skip
        file = self.folder / "slurmdbd.conf"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def _answers(self) -> bool:
        argv = ["sacctmgr", "-n", "show", "cluster"]
        done = subprocess.run(argv, env=dict(self._environment), capture_output=True, timeout=30, check=False)
        return done.returncode == 0


def _run(*argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL, cwd=cwd,
        env=None if env is None else dict(env),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{argv[0]} failed: {(done.stderr or done.stdout).strip()[-1000:]}")
