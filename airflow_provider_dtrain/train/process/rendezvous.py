"""Rendezvous store that listens only on the address that the launch chose.

PyTorch binds the store that rank 0 serves to every interface, because it gives the listening socket no address. This
module passes it a socket that is bound to ``MASTER_ADDR``. It reaches programs that never import this library as an
entry point of the group ``torch.backends``, which PyTorch 2.5 and newer call at the end of ``import torch``: the hosts
get this file beside the library as the module ``dtrain_rendezvous``. It imports nothing but the standard library.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

#: Set on the wrapper, so that a process installs it once.
MARK = "listens_on_master_addr"
BACKLOG = 4096


def listener(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the address of the rendezvous, or None if PyTorch must open its own.

    Only the address and the port that the launch gave to this rank qualify. The port is in use when this process
    already serves its store. PyTorch then shares that store.

    :param host: address that the caller of PyTorch named
    :param port: port that the caller of PyTorch named
    """
    environ = os.environ
    if not environ.get("DTRAIN_RUN") or (host, str(port)) != (environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")):
        return None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    except OSError:
        return None
    server = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        # The supervisor holds the port with the same option, without listening.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(found[4])
        server.listen(BACKLOG)
    except OSError:
        server.close()
        return None
    return server


def bound(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's store factory, changed so that its server listens on one address only.

    :param create: ``torch.distributed.rendezvous._create_c10d_store``
    """

    @functools.wraps(create)
    def create_bound(
        hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True, **more: Any
    ) -> Any:
        # A gang's ranks are never clients of an agent's store; a program may start such an agent itself.
        serves = rank == 0 and not more and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        server = listener(hostname, port) if serves else None
        if server is None:
            return create(hostname, port, rank, world_size, timeout, use_libuv, **more)
        from torch.distributed import TCPStore

        return TCPStore(
            host_name=hostname,
            port=port,
            world_size=world_size,
            is_master=True,
            timeout=timeout,
            multi_tenant=True,
            # The store owns the descriptor from here on.
            master_listen_fd=server.detach(),
            use_libuv=use_libuv and _libuv_takes_sockets(),
        )

    setattr(create_bound, MARK, True)
    return create_bound


def _libuv_takes_sockets() -> bool:
    """Return whether the store's newer server accepts a socket, as it does since PyTorch 2.5. Clients fit both."""
    version = str(getattr(sys.modules.get("torch"), "__version__", "")).split(".")
    return not (version[0] == "2" and version[1:2] in [[minor] for minor in "01234"])


def install() -> None:
    """Make PyTorch's rendezvous in this process listen on ``MASTER_ADDR`` only. Never raises.

    A build of PyTorch without ``torch.distributed``, or one whose factory has another name, stays unchanged.
    """
    if not os.environ.get("DTRAIN_RUN"):
        return
    module = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(module, "_create_c10d_store", None)
    if create is not None and not hasattr(create, MARK):
        setattr(module, "_create_c10d_store", bound(create))  # noqa: B010 - mypy knows no such name in a module
