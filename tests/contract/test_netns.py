"""The test hosts are separate machines, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.netns import NamespaceHosts, remove_stale
from testbed.netns.host import NamespaceHost
from testbed.netns.hosts import BASE
from testbed.standalone import wait_until

pytestmark = pytest.mark.netns


def traces(tag: str) -> list[str]:
    """Return the links and paths of this machine that contain a set's tag."""
    links = [one["ifname"] for one in json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))]
    places = [*Path("/run/netns").glob("*"), *Path("/etc/netns").glob("*"), *BASE.glob("*")]
    return [name for name in [*links, *map(str, places)] if tag in name]


def with_argument(host: NamespaceHost, argument: str) -> list[int]:
    """Return the processes of a host that have an argument, by their pid out here."""
    return [pid for pid, arguments in host.commands().items() if argument in arguments]


@pytest.mark.parametrize("shared_home", [False, True])
def test_hosts_differ_in_all_that_makes_a_machine(shared_home: bool) -> None:
    facts = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/pid; "
    facts += "pwd"
    with NamespaceHosts(count=2, shared_home=shared_home) as hosts:
        first, second = ([*host.exec(["sh", "-c", facts]).stdout.decode().splitlines()] for host in hosts)
        assert first[0] == "ns-0"
        assert [one == other for one, other in zip(first, second, strict=True)] == [
            False, False, False, False, shared_home,
        ]  # fmt: skip
        hosts.host(0).exec(["sh", "-c", "touch /tmp/mine /var/tmp/mine here"])
        assert hosts.host(1).exec(["ls", "/tmp/mine"]).returncode != 0
        assert (hosts.host(1).exec(["ls", "here"]).returncode == 0) is shared_home
        assert hosts.host(0).exec(["getent", "hosts", "ns-1"]).stdout.split()[0].decode() == hosts.host(1).address
        hosts.host(0).reboot()
        again = hosts.host(0).exec(["sh", "-c", facts]).stdout.decode().splitlines()
        assert again[1] == first[1], "the machine id stays"
        assert again[2] != first[2], "the boot id does not"
        assert hosts.host(0).exec(["ls", "/tmp/mine"]).returncode != 0
        assert hosts.host(0).exec(["ls", "/var/tmp/mine"]).returncode == 0
    assert traces(hosts.tag) == []


def test_a_crash_ends_processes_that_have_detached_themselves() -> None:
    with NamespaceHosts(count=1) as hosts:
        host = hosts.host(0)
        host.exec(["sh", "-c", "setsid sleep 4567 >/dev/null 2>&1 </dev/null &"])
        # The shell may end before its child is the sleeper.
        (sleeper,) = wait_until(lambda: with_argument(host, "4567"), timeout_s=30, what="the detached process")
        host.crash()
        assert not Path(f"/proc/{sleeper}").exists()
        assert host.pids() == []
        assert not host.is_up


def test_what_a_dead_run_left_is_removed_and_what_a_living_one_has_is_not() -> None:
    script = "from testbed.netns import NamespaceHosts; h = NamespaceHosts(1); print(h.tag, flush=True); input()"
    with NamespaceHosts(count=1) as living:
        dying = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        assert dying.stdout is not None
        tag = dying.stdout.readline().strip()
        assert traces(tag)
        dying.send_signal(signal.SIGKILL)
        dying.communicate()
        assert tag in remove_stale()
        assert traces(tag) == []
        assert living.host(0).is_up
        assert living.host(0).exec(["hostname"]).stdout == b"ns-0\n"
