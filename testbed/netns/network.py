"""One private network per set of test hosts: a bridge in the root namespace, without routes beyond it."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


def ip(*args: str) -> str:
    """Run ``ip`` and return its output."""
    return command("ip", *args)


def command(*argv: str, check: bool = True) -> str:
    """Run a program and return its output.

    :raises RuntimeError: the program failed; the message has its errors
    """
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def batch(lines: list[str], *options: str) -> None:
    """Run many ``ip`` commands in one process."""
    argv, text = ["ip", *options, "-batch", "-"], "\n".join(lines) + "\n"
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip -batch: {done.stderr.strip()}")


def free_network(first: int) -> ipaddress.IPv4Network:
    """Return a private /16 that overlaps no route or address of this machine.

    :param first: start of the search, so that two sets rarely collide
    """
    taken = [ipaddress.IPv4Network(route["dst"], strict=False) for route in _routes() if route["dst"] != "default"]
    for step in range(180):
        candidate = ipaddress.IPv4Network(f"10.{64 + (first + step) % 180}.0.0/16")
        if not any(candidate.overlaps(one) for one in taken):
            return candidate
    raise RuntimeError("no private network is free between 10.64.0.0 and 10.243.0.0")


def _routes() -> list[dict[str, str]]:
    # Addresses appear in the routing table `local`.
    return json.loads(ip("-json", "-4", "route", "show", "table", "all"))


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Keep other sets from the choice of a network until this one has its routes. Leaves no file behind."""
    folder = os.open("/run", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def namespace_name(tag: str, index: int) -> str:
    """Return the name of a host's network namespace."""
    return f"{tag}-{index}"


class Network:
    """The bridge of one set of hosts and the namespaces connected to it.

    :param tag: two letters and a hexadecimal number, unique on this machine, at most 8 characters
    """

    net: ipaddress.IPv4Network
    #: Address of this machine's root namespace.
    gateway: str

    def __init__(self, tag: str, count: int) -> None:
        self.tag, self.count = tag, count
        self.bridge = f"{tag}b"

    def namespace(self, index: int) -> str:
        return namespace_name(self.tag, index)

    def link(self, index: int) -> str:
        """Return the name of the veth end of a host that is attached to the bridge."""
        return f"{self.tag}v{index}"

    def address(self, index: int) -> str:
        return str(self.net[256 + index + 1])

    def up(self, names: list[str]) -> None:
        """Choose addresses, create bridge and namespaces. Files for name resolution are written first."""
        with _one_at_a_time():
            self.net = free_network(int(self.tag[2:], 16))
            self.gateway = str(self.net[1])
            self._up(names)

    def _up(self, names: list[str]) -> None:
        hosts = "127.0.0.1 localhost\n" + "".join(f"{self.address(i)} {name}\n" for i, name in enumerate(names))
        for i in range(self.count):
            etc = Path("/etc/netns") / self.namespace(i)
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(hosts)
            # Without this file every address lookup waits for a name server that does not exist.
            (etc / "resolv.conf").write_text("")
        batch(
            [
                f"link add {self.bridge} type bridge forward_delay 0 stp_state 0",
                f"addr add {self.gateway}/16 dev {self.bridge}",
                f"link set {self.bridge} up",
                *(line for i in range(self.count) for line in self._plug(i)),
            ]
        )
        for i in range(self.count):
            inside = [f"addr add {self.address(i)}/16 dev eth0", "link set lo up", "link set eth0 up"]
            batch(inside, "-n", self.namespace(i))

    def _plug(self, i: int) -> list[str]:
        return [
            f"netns add {self.namespace(i)}",
            f"link add {self.link(i)} type veth peer name eth0 netns {self.namespace(i)}",
            f"link set {self.link(i)} master {self.bridge} up",
        ]


def tear_down(tag: str) -> None:
    """Remove every namespace, link and file with the tag. Missing ones are ignored."""
    for namespace in Path("/run/netns").glob(f"{tag}-*"):
        command("ip", "netns", "del", namespace.name, check=False)
    for link in json.loads(ip("-json", "link", "show") or "[]"):
        name = link["ifname"]
        if name == f"{tag}b" or (name.startswith(f"{tag}v") and name[len(tag) + 1 :].isdigit()):
            command("ip", "link", "del", name, check=False)
    for etc in Path("/etc/netns").glob(f"{tag}-*"):
        for file in etc.iterdir():
            file.unlink()
        etc.rmdir()
    parent = Path("/etc/netns")
    if parent.is_dir() and not any(parent.iterdir()):
        parent.rmdir()
