"""One command on many hosts: cold by SSH, cold by the channel of the supervisor, and on open channels.

Hosts are network namespaces with one sshd each, with sshd's default MaxStartups, so this requires root. All hosts share
the cores of this machine: the CPU time of this process per host is what a machine that follows real hosts pays. Behind
a bastion, each connection goes through one more sshd by ``ssh -W``.
"""

from __future__ import annotations

import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from testbed.netns import NamespaceHosts, missing

#: As many as the engine connects at the same time.
THREADS = 128
CALLS = 20
CONNECT_S = 120.0


class FanOut:
    """Hosts of one run, and the ways to reach them.

    :param hosts: the last one is the bastion if ``extra`` leads through it
    :param extra: of each host's Airflow connection
    """

    def __init__(self, hosts: list[Any], extra: dict[str, Any], options: list[str]) -> None:
        from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress, Links
        from testbed.netns.transport import ssh_to

        self.hosts, self.options = hosts, options
        self.transports: list[Callable[[], Any]] = [
            lambda host=host: ssh_to(host, extra=extra, connect_timeout_s=CONNECT_S) for host in hosts
        ]
        self.links = Links()
        self.addresses = [
            HostAddress(
                name=host.name, remote_dir=".dtrain", state_dir=None, python=sys.executable, make_transport=make
            )
            for host, make in zip(hosts, self.transports, strict=True)
        ]

    def each(self, function: Callable[[Any], Any], items: list[Any]) -> tuple[float, float]:
        """Return the seconds of a function on all items, and the CPU seconds of this process for each."""
        begun, used = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(function, items))
        return time.monotonic() - begun, (time.process_time() - used) / len(items)

    def by_ssh(self) -> tuple[float, float]:
        """Run ``true`` by the program ssh, 32 at a time, as pdsh does."""

        def run(host: Any) -> None:
            target = f"{host.user}@{host.address}"
            subprocess.run(["ssh", *self.options, target, "true"], check=False, capture_output=True, timeout=CONNECT_S)

        begun = time.monotonic()
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(run, self.hosts))
        return time.monotonic() - begun, float("nan")

    def by_transport(self) -> tuple[float, float]:
        """Connect to each host, and run ``true``."""

        def run(make: Callable[[], Any]) -> None:
            transport = make()
            transport.run(["true"], timeout_s=CONNECT_S)
            transport.close()

        return self.each(run, self.transports)

    def by_channel(self) -> tuple[float, float]:
        """Open the channel to each host, which starts its supervisor."""
        self.links.close_all()
        return self.each(lambda address: self.links.get(address, timeout_s=CONNECT_S), self.addresses)

    def on_open_channels(self) -> tuple[float, float]:
        """Send a command to each open channel, and wait for all answers. Median of several."""
        links = [self.links.get(address) for address in self.addresses]
        times, used = [], time.process_time()
        for _ in range(CALLS):
            begun = time.monotonic()
            for answer in [link.call("clock") for link in links]:
                answer.result(30)
            times.append(time.monotonic() - begun)
        return statistics.median(times), (time.process_time() - used) / CALLS / len(links)


def options_of(hosts: NamespaceHosts, folder: Path) -> list[str]:
    """Return options of the program ssh, which knows the keys of all hosts."""
    known = folder / "known_hosts"
    known.write_text("".join(f"{host.address} {host.host_key}\n" for host in hosts))
    files = ["-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=/dev/null"]
    return ["-F", "/dev/null", "-o", "BatchMode=yes", "-i", str(hosts.host(0).private_key), *files]


@contextmanager
def fan_out(count: int, *, has_bastion: bool) -> Iterator[tuple[FanOut, Path]]:
    """Yield the hosts, and the log of the bastion's sshd."""
    with (
        tempfile.TemporaryDirectory() as folder,
        NamespaceHosts(count + has_bastion, 1, max_startups="10:30:100", sshd_extra="LogLevel VERBOSE") as machines,
    ):
        hosts, extra, bastion = list(machines)[:count], {}, machines.host(count + has_bastion - 1)
        options = options_of(machines, Path(folder))
        if has_bastion:
            command = ["ssh", *options, "-W", "%h:%p", f"{bastion.user}@{bastion.address}"]
            extra = {"host_proxy_cmd": " ".join(command)}
            options = [*options, "-o", f"ProxyCommand={extra['host_proxy_cmd']}"]
        found = FanOut(hosts, extra, options)
        try:
            yield found, bastion.folder / "sshd.log"
        finally:
            found.links.close_all()


def refused(log: Path) -> int:
    """Return the number of connections that sshd has dropped because of MaxStartups."""
    return log.read_text(errors="replace").count("drop connection #")


SSH, TRANSPORT, CHANNEL, OPEN = "the program ssh, 32 at a time", "SSH, cold", "channel, cold", "channel, open"


def measure(run: Run) -> None:
    logging.disable(logging.INFO)
    count = run.size(128, 16)
    run.note(f"{count} hosts.")
    for place, has_bastion in PLACES.items():
        with fan_out(count, has_bastion=has_bastion) as (hosts, log):
            ways = {
                SSH: hosts.by_ssh,
                TRANSPORT: hosts.by_transport,
                CHANNEL: hosts.by_channel,
                OPEN: hosts.on_open_channels,
            }
            # It installs the supervisor.
            hosts.by_channel()

            def figures(
                way: Callable[[], tuple[float, float]], place: str = place, log: Path = log
            ) -> dict[str, float]:
                before = refused(log)
                seconds, own_s = way()
                found = {place: seconds, f"refused, {place}": refused(log) - before}
                return found if math.isnan(own_s) else {**found, f"CPU, {place}": 1e3 * own_s}

            run.turns({name: partial(figures, way) for name, way in ways.items()})


PLACES = {"direct": False, "behind a bastion": True}
SIDES = {SSH: PEER, TRANSPORT: OURS, CHANNEL: OURS, OPEN: OURS}
OWN = {side: kind for side, kind in SIDES.items() if side != SSH}
BENCH = Bench(
    what="One command on 128 hosts",
    rows=tuple(
        row
        for place in PLACES
        for row in (
            Row(name=place, what="Until the last answer", unit="s", sides=SIDES, base=SSH),
            Row(
                name=f"CPU, {place}",
                what="CPU time of this process per host",
                unit="ms of CPU",
                sides=OWN,
                goals=(Goal(side=CHANNEL, at_most=11),),
            ),
            Row(
                name=f"refused, {place}",
                what="Connections that the bastion's sshd dropped, or one host's",
                unit="connections",
                sides=SIDES,
                goals=(Goal(side=CHANNEL, at_most=0),),
            ),
        )
    ),
    measure=measure,
    rounds=(3, 1),
    missing=missing,
)
