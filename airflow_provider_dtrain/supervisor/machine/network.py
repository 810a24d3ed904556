"""Interfaces and addresses of this host, read from the kernel."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..file_access import read_text
from ..names import CONTAINER_INTERFACES, Json

RTM_GETLINK, RTM_GETADDR = 18, 22
#: Scope of addresses that mean this machine only, e.g. 127.0.0.1.
SCOPE_HOST = 254
NLM_REQUEST_DUMP = 0x301


class Link(NamedTuple):
    """A network interface."""

    number: int
    name: str
    flags: int
    mtu: int
    kind: str


class InterfaceAddress(NamedTuple):
    """An address of an interface."""

    family: str
    address: str
    prefix: int
    scope: int
    flags: int
    link: Link


def netlink_dump(kind: int, header: bytes) -> Iterator[bytes]:
    """Yield the kernel's answers to one dump request, nothing if netlink is unavailable."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.settimeout(5.0)
            sock.bind((0, 0))
            sock.send(struct.pack("=LHHLL", 16 + len(header), kind, NLM_REQUEST_DUMP, 1, 0) + header)
            while True:
                data = sock.recv(1 << 18)
                while len(data) >= 16:
                    length, answer = struct.unpack_from("=LH", data)
                    if answer in (2, 3) or length < 16:
                        return
                    yield data[16:length]
                    data = data[(length + 3) & ~3 :]
    except OSError:
        return


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes behind a netlink header by their number."""
    found: dict[int, bytes] = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def links() -> dict[int, Link]:
    """Return the interfaces of this network namespace (sysfs may show those of another one)."""
    found = {}
    for message in netlink_dump(RTM_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", message)
        attrs = attributes(message[16:])
        mtu = struct.unpack("=I", attrs[4][:4])[0] if len(attrs.get(4, b"")) >= 4 else 0
        kind = attributes(attrs.get(18, b"")).get(1, b"").rstrip(b"\0").decode("ascii", "replace")
        found[index] = Link(index, attrs.get(3, b"").rstrip(b"\0").decode("utf-8", "replace"), flags, mtu, kind)
    return found


def addresses() -> list[InterfaceAddress]:
    """Return every address of every interface."""
    interfaces = links()
    found = []
    for message in netlink_dump(RTM_GETADDR, struct.pack("=BBBBi", 0, 0, 0, 0, 0)):
        family, prefix, flags, scope, index = struct.unpack_from("=BBBBi", message)
        attrs = attributes(message[8:])
        raw = attrs.get(2) or attrs.get(1)
        if family not in (socket.AF_INET, socket.AF_INET6) or raw is None or index not in interfaces:
            continue
        name = "inet" if family == socket.AF_INET else "inet6"
        found.append(InterfaceAddress(name, socket.inet_ntop(family, raw), prefix, scope, flags, interfaces[index]))
    return found


def speed_mbps(name: str) -> int | None:
    """Return an interface's speed in Mbit/s, None if it reports none."""
    text = read_text(f"/sys/class/net/{name}/speed") or ""
    return int(text) if text.isdigit() and 0 < int(text) < 4_000_000 else None


def candidates() -> list[Json]:
    """Return the addresses under which other hosts may reach this one.

    Excluded: loopback, link-local, down, tentative or deprecated addresses, bridges of container
    engines. Any other bridge counts only if there is no other address (a host bridged for its VMs).
    """
    usable = [
        found
        for found in addresses()
        if found.scope == 0
        and not found.flags & 0x68
        and found.link.flags & 1
        and not found.link.flags & 8
        and not CONTAINER_INTERFACES.match(found.link.name)
        and not found.address.startswith(("127.", "169.254."))
    ]
    plain = [found for found in usable if not is_bridge(found.link)]
    return [
        {
            "address": found.address,
            "interface": found.link.name,
            "mtu": found.link.mtu,
            "speed_mbps": speed_mbps(found.link.name),
            "family": found.family,
            "prefix": found.prefix,
        }
        for found in plain or usable
    ]


def is_bridge(link: Link) -> bool:
    """Return whether an interface is a bridge."""
    return link.kind == "bridge" or os.path.isdir(f"/sys/class/net/{link.name}/bridge")


def interface_of(address: str) -> str | None:
    """Return the interface that has an address."""
    bare = address.partition("%")[0]
    return next((found.link.name for found in addresses() if found.address == bare), None)
