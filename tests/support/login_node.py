"""This machine as the login node of a cluster: an sshd whose sessions find the cluster's commands."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.slurm.configuration import free_ports
from testbed.standalone import wait_until

ADDRESS = "127.0.0.1"
_CONFIG = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/id_ed25519.pub
SetEnv {variables}
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
PidFile none
PrintMotd no
"""


@dataclass(frozen=True)
class LoginNode:
    """A login node that root reaches."""

    port: int
    private_key: Path
    #: Type and key.
    host_key: str

    @property
    def connection(self) -> str:
        """JSON for an ``AIRFLOW_CONN_...`` variable."""
        extra = {"key_file": str(self.private_key), "host_key": self.host_key, "look_for_keys": False}
        document = {"conn_type": "dtrain_slurm", "host": ADDRESS, "login": "root", "port": self.port, "extra": extra}
        return json.dumps(document)


@contextlib.contextmanager
def login_node(folder: Path, environment: Mapping[str, str]) -> Iterator[LoginNode]:
    """Run the sshd. Needs root.

    :param folder: new folder for its keys
    :param environment: variables of sessions, as a cluster has them
    """
    folder.mkdir()
    for name in ("host_key", "id_ed25519"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=20
        )
    (port,) = free_ports(1)
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    config = _CONFIG.format(address=ADDRESS, port=port, folder=folder, variables=variables)
    (folder / "sshd_config").write_text(config)
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin") or "sshd"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
    try:
        wait_until(lambda: _greets(port), timeout_s=20, what="the sshd of the login node", poll_s=0.05)
        key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        yield LoginNode(port, folder / "id_ed25519", key)
    finally:
        process.kill()
        process.wait()


def _greets(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=1) as sock:
        return sock.recv(4) == b"SSH-"
    return False
