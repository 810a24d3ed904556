"""Addresses of the first node of a job."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Mapping

_CREDENTIALS = struct.Struct("=iII")


def first_host(nodes: str) -> str:
    """Return the first name of a list in Slurm's form, such as ``gpu[01-04,7],login``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def names_of_first_node(environ: Mapping[str, str]) -> list[str]:
    """Return address and name of the first node of the job, as Slurm has them."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return [name for name in (environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), first_host(nodes)) if name]


def resolve(names: Iterable[str]) -> list[str]:
    """Return the addresses of names in order, those of this machine alone last. Blocks."""
    found: dict[str, None] = {}
    for name in names:
        with contextlib.suppress(OSError, UnicodeError):
            for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
                found[str(address[0])] = None
    usable = [one for one in found if not _is_everywhere(one)]
    return sorted(usable, key=lambda one: ipaddress.ip_address(one.partition("%")[0]).is_loopback)


def _is_everywhere(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.is_unspecified or ip.is_multicast


def listen(addresses: Iterable[str], ports: Iterable[int]) -> socket.socket | None:
    """Return a socket that listens at the first address of this machine and the first free port."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for port in ports:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                # Connections of an ended job do not keep the port.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                sock.listen(256)
            except OSError as error:
                sock.close()
                if error.errno == errno.EADDRNOTAVAIL:
                    break
                continue
            return sock
    return None


def listen_locally(name: str) -> socket.socket | None:
    """Return a socket for processes of this machine, None if another process has the name."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0{name}")
        sock.listen(256)
    except OSError:
        sock.close()
        return None
    return sock


def uid_of_peer(sock: socket.socket) -> int:
    """Return the account behind a unix socket."""
    return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])
