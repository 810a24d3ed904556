"""Store of PyTorch's rendezvous, served beside the ranks as torchrun's agent serves it.

Under torchrun, the ranks are clients of a store that lives in another process: they may connect before any rank has
called ``init_process_group``, create process groups one after the other, and end in any order. Here, rank 0 forks this
process as soon as it has imported PyTorch, and sets ``TORCHELASTIC_USE_AGENT_STORE`` as torchrun does. The store
listens on ``MASTER_ADDR`` only; PyTorch's own would listen on every interface.

This reaches programs that never import this library as an entry point of the group ``torch.backends``, which PyTorch
2.5 and newer call at the end of ``import torch``: the hosts get this file beside the library as the module
``dtrain_rendezvous``. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import select
import signal
import socket
import stat
import sys
import warnings
from collections.abc import Callable
from typing import Any

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
#: Address and port of the store, set for the rank and its children once it is used, and on rank 0 its process.
STORE = "DTRAIN_STORE"
#: Set on PyTorch's changed function, so that a process changes it once.
MARK = "knows_its_store"
BACKLOG = 4096


def install() -> None:
    """Serve the store on rank 0, and make PyTorch's rendezvous a client of it on every rank. Never raises.

    Nothing happens outside a trial, and in a build of PyTorch without ``torch.distributed``.
    """
    environ = os.environ
    distributed = sys.modules.get("torch.distributed")
    if not environ.get("DTRAIN_RUN") or distributed is None or not distributed.is_available():
        return
    if environ.get(AGENT_STORE) == "False" and "MASTER_PORT" in environ:
        host, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
        process = _serve(host, int(port)) if environ.get("RANK") == "0" else None
        environ[STORE] = f"{host} {port} {process or ''}"
        environ[AGENT_STORE] = "True"
    module = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(module, "_create_c10d_store", None)
    if STORE in environ and create is not None and not hasattr(create, MARK):
        setattr(module, "_create_c10d_store", with_one_store(create))  # noqa: B010 - no attribute for mypy


def uninstall() -> None:
    """End the store, for ranks that exchange messages without PyTorch on its port. Never raises."""
    process = os.environ.pop(STORE, "").split(" ")[-1]
    os.environ[AGENT_STORE] = "False"
    if not process:
        return
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(int(process))
        try:
            os.kill(int(process), signal.SIGKILL)
            # Its port is free when it has ended.
            select.select([handle], [], [], 10.0)
        finally:
            os.close(handle)


def with_one_store(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's store factory, changed for scripts that form several process groups.

    A group that is formed after another one was destroyed must not read the keys of the former. A group with an address
    of its own has its own store on its rank 0: a script sets ``MASTER_ADDR`` and ``MASTER_PORT`` for processes that it
    starts itself, e.g. by ``mp.spawn``. Under torchrun, the former may hang and the latter does.

    :param create: ``torch.distributed.rendezvous._create_c10d_store``
    """
    count = itertools.count()

    @functools.wraps(create)
    def create_store(hostname: str, port: int, *arguments: Any, **options: Any) -> Any:
        environ = os.environ
        # A launcher inside the rank, such as torchrun, has a run of its own and serves a store for it.
        if environ.get("TORCHELASTIC_RUN_ID") != environ.get("DTRAIN_RUN") or environ.get(AGENT_STORE) != "True":
            return create(hostname, port, *arguments, **options)
        if environ.get(STORE, "").startswith(f"{hostname} {port} "):
            store = create(hostname, port, *arguments, **options)
            number = next(count)
            return sys.modules["torch.distributed"].PrefixStore(f"group_{number}", store) if number else store
        environ[AGENT_STORE] = "False"
        try:
            return create(hostname, port, *arguments, **options)
        finally:
            environ[AGENT_STORE] = "True"

    setattr(create_store, MARK, True)
    return create_store


def listener(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the address of the rendezvous, or None if that is impossible.

    Only the address and the port that the launch gave to this rank qualify.

    :param host: address that the caller named
    :param port: port that the caller named
    """
    environ = os.environ
    if not environ.get("DTRAIN_RUN") or (host, str(port)) != (environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")):
        return None
    try:
        return _listen(host, port)
    except OSError:
        return None


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    server = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        # The supervisor holds the port with the same option, without listening.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(found[4])
        server.listen(BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def _serve(host: str, port: int) -> int | None:
    """Start the process of the store and return its number, None if another process of this rank has started it."""
    server = None
    try:
        server = _listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
    with server if server is not None else contextlib.nullcontext(), warnings.catch_warnings():
        # Python warns of forks beside threads. The child runs no code of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return _fork_twice(host, port, server)
        except OSError as error:
            print(f"dtrain: the store of the rendezvous cannot be started: {error.strerror}", file=sys.stderr)
    return None


def _fork_twice(host: str, port: int, server: socket.socket | None) -> int:
    """Start a process that is no child of this one, so that no program meets it when it waits for its children."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                os.write(writer, str(grandchild).encode())
            else:
                _store(host, port, server)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        os.waitpid(child, 0)
        return int(os.read(reader, 32) or 0)
    finally:
        os.close(reader)


def _store(host: str, port: int, server: socket.socket | None) -> None:
    """Serve until the supervisor ends the run. Called in a process of its own."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(server)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    options: dict[str, Any] = (
        {} if server is None else {"master_listen_fd": server.detach(), "use_libuv": _libuv_takes_sockets()}
    )
    store = TCPStore(host_name=host, port=port, is_master=True, wait_for_workers=False, **options)
    # From here on a program that reads the rank's output to its end does not wait for this process.
    _silence()
    while store is not None:
        signal.pause()


def _close_all_but(server: socket.socket | None) -> None:
    """Close inherited pipes and sockets, whose other ends wait for their last user. The locks of the slots stay."""
    kept = {0, 1, 2} if server is None else {0, 1, 2, server.fileno()}
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if number not in kept and not stat.S_ISREG(os.fstat(number).st_mode):
                os.close(number)


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


def _libuv_takes_sockets() -> bool:
    """Return whether the store's newer server accepts a socket, as it does since PyTorch 2.5. Clients fit both."""
    version = str(getattr(sys.modules.get("torch"), "__version__", "")).split(".")
    return not (version[0] == "2" and version[1:2] in [[minor] for minor in "01234"])
