"""Way to a host: address and proxy from the connection and ``~/.ssh/config``, and the command that is the proxy."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.timing import KEEPALIVE_S
from airflow_provider_dtrain.errors import HostUnreachableError, UserError
from airflow_provider_dtrain.hosts.wire import shown

if TYPE_CHECKING:
    from airflow.providers.ssh.hooks.ssh import SSHHook

#: Bytes of the proxy's standard error that are kept.
_ERRORS_BYTES = 2048
#: Seconds for the last words of a proxy that has ended.
_LAST_OUTPUT_S = 1.0
#: Words of ssh when a bastion closes the connection before it sends its version.
_DROPPED = re.compile(rb"^(kex|ssh)_exchange_identification: ", re.MULTILINE)
#: ``[user@]host[:port]``, the form of ProxyJump. No part can be an option of ssh.
_JUMP = re.compile(r"(ssh://)?([^\s@/,-][^\s@/,]*@)?[^\s@/,-][^\s@/,]*")


def apply_ways(hook: SSHHook, connection: Any) -> None:
    """Give a hook the address and the proxy that ssh would use.

    Of ``~/.ssh/config``, SSHHook reads only ProxyCommand and IdentityFile. In the connection's extra,
    ``host_proxy_cmd`` and ``proxy_jump`` take precedence over that file; the value ``none`` means no proxy.

    :raises UserError: ``proxy_jump`` has another form
    """
    config = _of_file(hook.remote_host)
    hook.remote_host = str(config.get("hostname") or hook.remote_host)
    if not connection.login and config.get("user"):
        hook.username = str(config["user"])
    if not connection.port and config.get("port"):
        hook.port = int(config["port"])
    extra = connection.extra_dejson
    jump = extra.get("proxy_jump") or (None if config.get("proxycommand") else config.get("proxyjump"))
    if command := extra.get("host_proxy_cmd"):
        hook.host_proxy_cmd = None if command == "none" else _expanded(str(command), hook)
    elif jump:
        hook.host_proxy_cmd = None if jump == "none" else _jump_command(str(jump), hook)


def _of_file(host: str) -> Mapping[str, Any]:
    import paramiko

    path = Path("~/.ssh/config").expanduser()
    if not path.is_file():
        return {}
    found: Mapping[str, Any] = paramiko.SSHConfig.from_path(str(path)).lookup(host)
    return found


def _expanded(command: str, hook: SSHHook) -> str:
    values = {"%h": hook.remote_host, "%p": str(hook.port), "%r": hook.username or "", "%%": "%"}
    return re.sub("%[hpr%]", lambda found: values[found[0]], command)


def _jump_command(jump: str, hook: SSHHook) -> str:
    """Return the command by which ssh itself reaches a host through others."""
    hops = [hop.strip() for hop in jump.split(",")]
    if not all(_JUMP.fullmatch(hop) for hop in hops):
        raise UserError(f"proxy_jump must be [user@]host[:port], several separated by commas, got {jump!r}.")
    *first, last = [hop if hop.startswith("ssh://") else f"ssh://{hop}" for hop in hops]
    target = f"[{hook.remote_host}]" if ":" in hook.remote_host else hook.remote_host
    argv = ["ssh", "-o", "BatchMode=yes", "-o", f"ServerAliveInterval={KEEPALIVE_S}", "-W", f"{target}:{hook.port}"]
    argv += ["-i", hook.key_file] if hook.key_file else []
    argv += ["-J", ",".join(first)] if first else []
    return shlex.join([*argv, last])


def bastion_of(hook: SSHHook) -> str:
    """Return a name that hosts behind the same bastion share: the command of their proxy without their addresses."""
    address = rf"(?<![\w.:-]){re.escape(hook.remote_host)}(?![\w.-])"
    return re.sub(address, "%h", str(hook.host_proxy_cmd))


class ProxySocket(socket.socket):
    """Connection to a host that a command carries on its standard input and output.

    paramiko's own class neither notices the end of the command nor reads its errors.
    """

    def __init__(self, host: str, command: str) -> None:
        """Start the command.

        :raises HostUnreachableError: it cannot be started
        """
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        self._host, self._command = host, command
        self._errors = bytearray()
        self._pid = os.getpid()
        try:
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            super().close()
            raise HostUnreachableError(
                host,
                f"Host '{host}' cannot be reached: its proxy command cannot be started here: {error}. {self._hint()}",
            ) from error
        finally:
            theirs.close()
        self._reader = threading.Thread(target=self._read_errors, name=f"dtrain-proxy-{host}", daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        """Collect the last words of the command, and reap it."""
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._process.stderr.fileno(), 4096):
                self._errors += data
                del self._errors[:-_ERRORS_BYTES]
        self._process.wait()
        self._process.stderr.close()

    def close(self) -> None:
        """Close the connection and end the command, unless a forked child has inherited it."""
        super().close()
        if self._pid == os.getpid() and self._process.poll() is None:
            self._process.terminate()

    @property
    def is_dropped(self) -> bool:
        """True when a bastion or the host closed the connection before the key exchange, as sshd does under load.

        A proxy that carried an empty connection ends without an error and without a word.
        """
        self._reader.join(_LAST_OUTPUT_S)
        ended_well = self._process.poll() == 0 and not self._errors
        return ended_well or _DROPPED.search(self._errors) is not None

    @property
    def output(self) -> str:
        """End of the command's standard error, in one line."""
        return shown(b" ".join(self._errors.split())[-200:])

    def broken(self, deadline: float) -> HostUnreachableError:
        """Return the error for a command that ended, or sent nothing before the deadline."""
        is_late = time.monotonic() >= deadline
        self._reader.join(0.0 if is_late else _LAST_OUTPUT_S)
        message = self.output
        how = "sent nothing in time" if is_late and self._process.poll() is None else "ended"
        output = f": {message}" if message else ""
        return HostUnreachableError(
            self._host, f"Host '{self._host}' cannot be reached: its proxy command {how}{output}. {self._hint()}"
        )

    def _hint(self) -> str:
        # Arguments of other commands may be secrets.
        shows = self._command if self._command.startswith("ssh ") else f"{self._command.split(' ')[0]} ..."
        return f"Try it on this machine, as the account that runs Airflow: {shows}"
