"""One command on many hosts: cold by SSH, cold by the channel of the supervisor, and on open channels.

Hosts are network namespaces with one sshd each, with sshd's default MaxStartups, so this requires root. All hosts share
the cores of this machine: beside each row is the CPU time of this process per host, which a machine that follows real
hosts pays. ``--bastion`` puts one more sshd between, through which each connection goes by ``ssh -W``.

    python -m bench.bench_fan_out [--hosts 128] [--rounds 3] [--bastion]
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def main() -> None:
    """Print one row per way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bastion", action="store_true")
    args = parser.parse_args()
    if why := missing():
        sys.exit(f"This benchmark cannot run: {why}")
    logging.disable(logging.INFO)
    with fan_out(args.hosts, has_bastion=args.bastion) as (found, log):
        ways = {
            "the program ssh, 32 at a time": found.by_ssh, "SSH, cold": found.by_transport,
            "channel, cold": found.by_channel, "channel, open": found.on_open_channels,
        }  # fmt: skip
        found.by_channel()
        drops = refused(log)
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        dropped = dict.fromkeys(ways, 0)
        for _ in range(args.rounds):
            for name, way in ways.items():
                before = refused(log)
                rows[name].append(way())
                dropped[name] += refused(log) - before
    words = "behind one bastion" if args.bastion else "direct"
    machine = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    print(f"{args.hosts} hosts {words}, {machine}; installation: {drops} refused")
    print(f"{'way':32} {'median s':>9} {'min':>7} {'max':>7} {'own CPU ms/host':>16} {'refused':>8}")
    for name, values in rows.items():
        times, own = [one[0] for one in values], statistics.median(one[1] for one in values)
        print(
            f"{name:32} {statistics.median(times):9.3f} {min(times):7.3f} {max(times):7.3f} {1000 * own:16.2f} "
            f"{dropped[name]:8}"
        )


if __name__ == "__main__":
    main()
