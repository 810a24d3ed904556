"""Creation of a paramiko client from an Airflow ``ssh`` connection, with a specific error for each cause."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_dtrain.core.lifecycle.timing import KEEPALIVE_S, TCP_TIMEOUT_S
from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.errors import (
    HostAuthError,
    HostKeyError,
    HostUnreachableError,
    UserError,
)
from airflow_provider_dtrain.hosts.transport.base import HostKey
from airflow_provider_dtrain.hosts.transport.handshakes import MOST_BEGUN, handshakes_of
from airflow_provider_dtrain.hosts.transport.host_keys import expect_any, pin
from airflow_provider_dtrain.hosts.transport.proxy import ProxySocket, apply_ways, bastion_of
from airflow_provider_dtrain.hosts.wire import plain, shown

if TYPE_CHECKING:
    import paramiko
    from airflow.providers.ssh.hooks.ssh import SSHHook

_PAUSE_S, _MAX_PAUSE_S = 0.1, 4.0
_DROP_MESSAGES = (b"Exceeded MaxStartups", b"Not allowed at this time")
_SILENT = "closed without a message"

Result = TypeVar("Result")


class _Dropped(Exception):
    """The host closed the connection before the key exchange."""


def hook_from_connection(connection: Any) -> SSHHook:
    """Return a hook for a connection that was fetched already, without a further look-up.

    Compression is off unless the connection requests it: payloads are already compressed, and zlib
    costs more time than it saves on a local network.

    :param connection: Airflow connection of type ``ssh``
    :raises UserError: the connection cannot be used, e.g. its private key is not valid
    """
    from airflow.providers.ssh.hooks.ssh import SSHHook

    class FetchedHook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    _mask(connection)
    try:
        hook = FetchedHook(ssh_conn_id=connection.conn_id or "ssh")
        apply_ways(hook, connection)
        expect_any(hook, str(connection.extra_dejson.get("host_key") or ""))
    except Exception as error:
        raise UserError(
            f"Connection '{connection.conn_id}' cannot be used for SSH: {as_sentence(plain(error))} Correct it under "
            "Admin > Connections or with: airflow connections"
        ) from error
    hook.compress = str(connection.extra_dejson.get("compress", "false")).lower() == "true"
    return hook


def _mask(connection: Any) -> None:
    """Mask the secrets in the connection's extra in logs, since Airflow masks the extra only as a whole."""
    from airflow.sdk.log import mask_secret

    extra = connection.extra_dejson
    secrets = [extra.get("private_key_passphrase"), connection.password]
    secrets += [line for line in str(extra.get("private_key") or "").splitlines() if "-----" not in line]
    for secret in secrets:
        if secret:
            mask_secret(secret)


def connect(host: str, make_hook: Callable[[], SSHHook], host_key: str | None, deadline: float) -> paramiko.SSHClient:
    """Return a connected client.

    :param host_key: ``TYPE BASE64`` to expect, unless the connection has a key of its own
    :param deadline: reading of the monotonic clock
    :raises HostError: a specific subclass for each cause
    """
    hook = make_hook()
    pin(host, hook, host_key)
    return _until_accepted(host, hook, deadline, lambda: _attempt(host, hook, deadline))


def _until_accepted(host: str, hook: SSHHook, deadline: float, begin: Callable[[], Result]) -> Result:
    """Return the result of ``begin``, and call it again while the connection is dropped before the key exchange."""
    started_s = time.monotonic()
    attempts = 0
    dropped: _Dropped | None = None
    while True:
        attempts += 1
        try:
            return begin()
        except HostUnreachableError as error:
            if dropped is None or time.monotonic() < deadline:
                raise
            # The time was over during this attempt. Those before it name the cause.
            elapsed_s = time.monotonic() - started_s
            raise _dropped(host, hook, attempts - 1, elapsed_s, str(dropped)) from error
        except _Dropped as error:
            dropped = error
            pause_s = min(_MAX_PAUSE_S, _PAUSE_S * 2**attempts) * random.uniform(0.5, 1.0)  # noqa: S311
            if time.monotonic() + pause_s > deadline:
                elapsed_s = time.monotonic() - started_s
                raise _dropped(host, hook, attempts, elapsed_s, str(error)) from error
        time.sleep(pause_s)


def _attempt(host: str, hook: SSHHook, deadline: float) -> paramiko.SSHClient:
    where = f"{hook.remote_host}:{hook.port}"
    sock = _dial(host, hook, deadline)
    # The guard below ends an attempt in time. paramiko's own limits only have to be later.
    hook.conn_timeout = hook.auth_timeout = int(max(1.0, deadline - time.monotonic()) + 5)
    hook.conn_retry_attempts = 1
    hook.keepalive_interval = KEEPALIVE_S
    vars(hook)["host_proxy"] = sock
    with _closed_at(deadline, sock) as late:
        try:
            return hook.get_conn()
        except Exception as error:
            sock.close()
            raise (_late(host, where) if late.is_set() else _explain(host, hook, where, error)) from error


def _dial(host: str, hook: SSHHook, deadline: float) -> socket.socket:
    if not hook.host_proxy_cmd:
        return dial(host, hook.remote_host, int(hook.port or 22), deadline)
    try:
        with handshakes_of(bastion_of(hook)).beginning(deadline):
            return _dial_by_proxy(host, hook.host_proxy_cmd, deadline)
    except TimeoutError as error:
        raise HostUnreachableError(
            host,
            f"Host '{host}' cannot be reached: its proxy connects {MOST_BEGUN} hosts at a time, and others came first. "
            "Start fewer tasks at once, or let ssh share one connection to the bastion (ControlMaster).",
        ) from error


def _dial_by_proxy(host: str, command: str, deadline: float) -> ProxySocket:
    sock = ProxySocket(host, command)
    try:
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        first = _first_bytes(sock)
        if first and not first.startswith(_DROP_MESSAGES):
            return sock
        if first or sock.is_dropped:
            raise _Dropped(shown(first).strip() or sock.output or _SILENT)
        raise sock.broken(deadline)
    except TimeoutError as error:
        broken = sock.broken(deadline)
        sock.close()
        raise broken from error
    except BaseException:
        sock.close()
        raise


def dial(host: str, address: str, port: int, deadline: float) -> socket.socket:
    """Return a TCP connection to an SSH server whose first bytes have arrived.

    :raises _Dropped: the server closed it at once
    :raises HostUnreachableError: no connection; the message states the cause
    """
    where = f"{address}:{port}"
    left_s = max(0.1, deadline - time.monotonic())
    try:
        sock = socket.create_connection((address, port), timeout=left_s)
    except OSError as error:
        raise _no_route(host, where, left_s, error) from error
    try:
        _tune(sock)
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        first = _first_bytes(sock)
        if not first or first.startswith(_DROP_MESSAGES):
            raise _Dropped(shown(first).strip() or _SILENT)
    except TimeoutError as error:
        sock.close()
        raise HostUnreachableError(
            host, f"Host '{host}' accepted the connection to {where} but sent no data. Is it an SSH server?"
        ) from error
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    # Without TCP_NODELAY, each command waits 40 ms for a delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_TIMEOUT_S * 1000)


def _first_bytes(sock: socket.socket) -> bytes:
    """Return the first bytes without consuming them, none if the other side closes the connection.

    An overloaded sshd does so, for which paramiko would log a traceback.
    """
    try:
        return sock.recv(64, socket.MSG_PEEK)
    except ConnectionError:
        return b""


@contextlib.contextmanager
def _closed_at(deadline: float, sock: Any) -> Iterator[threading.Event]:
    """Close a socket at the deadline. The event is set if this happened."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        with contextlib.suppress(OSError):
            if isinstance(sock, socket.socket):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    timer = threading.Timer(max(0.1, deadline - time.monotonic()), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _no_route(host: str, where: str, left_s: float, error: OSError) -> HostUnreachableError:
    if isinstance(error, socket.gaierror):
        message = f"its address is unknown here ({where}: {error.strerror}). Correct the connection's host, or DNS."
    elif isinstance(error, ConnectionRefusedError):
        message = f"{where} refuses connections. Is sshd running there, and is the connection's port right?"
    elif isinstance(error, TimeoutError):
        message = f"{where} did not answer within {left_s:.0f} s. The host is down, or a firewall drops packets."
    else:
        message = f"no route to {where} ({error.strerror or error}). Check address, route and firewall."
    return HostUnreachableError(host, f"Host '{host}' cannot be reached: {message}")


def _late(host: str, where: str) -> HostUnreachableError:
    return HostUnreachableError(
        host, f"Host '{host}' ({where}) did not finish the SSH handshake in time. Is it overloaded?"
    )


def _dropped(host: str, hook: SSHHook, attempts: int, elapsed_s: float, message: str) -> HostUnreachableError:
    closer = "or its bastion closed" if hook.host_proxy_cmd else "closed"
    return HostUnreachableError(
        host,
        f"Host '{host}' ({hook.remote_host}:{hook.port}) {closer} {attempts} SSH connections in {elapsed_s:.0f} s "
        f"before the key exchange ({message}). sshd does so if more than MaxStartups (10:30:100 by default) "
        "connections are unauthenticated, or if it blocks this address. Raise MaxStartups there, or start fewer tasks "
        "at once: each worker process opens one connection per host.",
    )


def _explain(host: str, hook: SSHHook, where: str, error: Exception) -> Exception:
    import paramiko

    message = plain(error, 300)
    if isinstance(error, paramiko.BadHostKeyException):
        return changed_key(host, where, _host_key(error.key), _host_key(error.expected_key))
    if "not found in known_hosts" in message:
        return _unknown_key(host, hook, where)
    if isinstance(error, EOFError | ConnectionError) or "protocol banner" in message:
        return _Dropped(message or "end of file")
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return HostUnreachableError(
            host,
            f"Host '{host}' ({where}) and paramiko have no algorithm in common: {message} See the connection's "
            "extras ciphers and disabled_algorithms.",
        )
    if isinstance(error, paramiko.AuthenticationException) and ("timeout" in message or "saw EOF" in message):
        return HostUnreachableError(host, f"Host '{host}' ({where}) closed the connection during the login: {message}")
    if isinstance(error, paramiko.AuthenticationException) or "authentication" in message.lower():
        return _refused(host, hook, where, message)
    if isinstance(error, FileNotFoundError | PermissionError):
        return HostAuthError(host, f"The key file for host '{host}' cannot be read on this machine: {message}")
    return HostUnreachableError(host, f"The SSH connection to host '{host}' ({where}) failed: {message}")


def _refused(host: str, hook: SSHHook, where: str, message: str) -> HostAuthError:
    ways = [
        "the private key of the connection" if hook.pkey else "",
        f"key file {hook.key_file}" if hook.key_file else "",
        "its password" if hook.password else "",
    ]
    tried = " and ".join(filter(None, ways)) or "the SSH agent and the keys in ~/.ssh of this account"
    return HostAuthError(
        host,
        f"Host '{host}' ({where}) refused the login of user '{hook.username}' with {tried} ({message}). Add the public "
        "key to authorized_keys there, or correct login, key_file or private_key of the connection.",
    )


def changed_key(host: str, where: str, seen: HostKey, expected: HostKey) -> HostKeyError:
    """Return the error for a host that presents another key than before."""
    return HostKeyError(
        host,
        f"Host '{host}' ({where}) presents another key than before: {seen.type} {seen.fingerprint} instead of "
        f"{expected.type} {expected.fingerprint}. Either the machine was reinstalled, or another machine intercepts "
        "the connection. If you know that it was reinstalled, remove the old key from known_hosts or the connection, "
        f"then run: airflow dtrain hosts probe {host} --accept-host-key {seen.fingerprint}",
    )


def _unknown_key(host: str, hook: SSHHook, where: str) -> HostKeyError:
    seen = "which"
    with contextlib.suppress(Exception):
        key = fetch_host_key(hook, 5.0)
        seen = f"{key.type} {key.fingerprint}, which"
    return HostKeyError(
        host,
        f"Host '{host}' ({where}) presents a key, {seen} has not been accepted yet. Compare it with the output of "
        "'ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub' on the host, then accept it: airflow dtrain hosts add "
        "(or probe) with --accept-host-key SHA256:...",
    )


def fetch_host_key(hook: SSHHook, timeout_s: float = 10.0) -> HostKey:
    """Return the key that an SSH server presents, without logging in.

    :raises HostUnreachableError: no SSH server answers there
    """
    import paramiko

    address, port = hook.remote_host, int(hook.port or 22)
    deadline = time.monotonic() + timeout_s

    def fetch() -> HostKey:
        sock = _dial(address, hook, deadline)
        with _closed_at(deadline, sock), contextlib.closing(paramiko.Transport(sock)) as transport:
            transport.start_client(timeout=timeout_s)
            return _host_key(transport.get_remote_server_key())

    try:
        return _until_accepted(address, hook, deadline, fetch)
    except (EOFError, OSError, paramiko.SSHException) as error:
        raise HostUnreachableError(
            address, f"{address}:{port} presented no host key within {timeout_s:g} s: {plain(error, 300)}"
        ) from error


def _host_key(key: paramiko.PKey) -> HostKey:
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return HostKey(key.get_name(), key.get_base64(), f"SHA256:{digest}")
