"""Links shared in a process: one per host, reconnected, closed with their last user. Hosts with a shared home."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from airflow_provider_dtrain.errors import (
    HostUnreachableError,
)
from airflow_provider_dtrain.hosts.channel import link as link_module
from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress, Links
from airflow_provider_dtrain.hosts.transport.base import Transport
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.hosts.wire import Frame
from testbed.netns.transport import ssh_to
from tests.support.peer_link import PEER, answer, connect, frame
from tests.support.supervisors import program

pytest_plugins = ["testbed.netns.plugin"]


def address(home: Path, made: list[Transport], **changes: Any) -> HostAddress:
    def make() -> Transport:
        made.append(LocalTransport(home=home))
        return made[-1]

    settings = {"name": "gpu-01", "remote_dir": ".dtrain", "state_dir": None, "python": sys.executable, **changes}
    return HostAddress(make_transport=make, **settings)


@pytest.fixture
def peer_as_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "supervisor", lambda: program(PEER))


@pytest.mark.usefixtures("peer_as_supervisor")
def test_a_process_has_one_link_per_host_and_makes_it_again_when_it_dies(tmp_path: Path) -> None:
    links, made = Links(), []
    host = address(tmp_path, made)
    seen: set[int] = set()
    threads = [threading.Thread(target=lambda: seen.add(id(links.get(host)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    first = links.get(host)
    assert seen == {id(first)}
    assert len(made) == 1
    with pytest.raises(HostUnreachableError):
        answer(first, "leave")
    assert links.current(host) is None
    second = links.get(host)
    assert links.current(host) is second
    assert links.current(address(tmp_path, made, remote_dir="elsewhere")) is None
    assert second is not first
    assert second.alive
    links.close_all()
    assert not second.alive
    links.close_all()


@pytest.mark.usefixtures("peer_as_supervisor")
def test_a_link_closes_with_its_last_user(tmp_path: Path) -> None:
    links, made = Links(), []
    host = address(tmp_path, made)
    link = links.get(host, user="attempt 1")
    assert links.get(host, user="attempt 2") is link
    assert links.get(host, user="attempt 2") is link
    links.release("gpu-01", user="attempt 2")
    assert link.alive
    links.release("gpu-01", user="attempt 1")
    assert not link.alive
    links.drop("gpu-01")
    links.drop("never seen")


@pytest.mark.usefixtures("peer_as_supervisor")
def test_a_changed_address_gets_a_new_link(tmp_path: Path) -> None:
    links, made = Links(), []
    first = links.get(address(tmp_path, made))
    second = links.get(address(tmp_path, made, remote_dir="other"))
    assert second is not first
    assert not first.alive
    links.close_all()


def test_a_host_that_cannot_be_reached_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "supervisor", lambda: program(PEER))
    links, hold, entered = Links(), threading.Event(), threading.Event()

    def stuck() -> Transport:
        entered.set()
        hold.wait(30)
        raise HostUnreachableError("slow", "no route")

    slow = HostAddress(name="slow", remote_dir="x", state_dir=None, python="p", make_transport=stuck)
    thread = threading.Thread(target=lambda: pytest.raises(HostUnreachableError, links.get, slow))
    thread.start()
    assert entered.wait(10)
    assert links.get(address(tmp_path, [])).alive
    hold.set()
    thread.join(timeout=10)
    links.close_all()


@pytest.mark.netns
def test_two_hosts_with_one_home_install_at_once(namespace_hosts: Callable[..., Any]) -> None:
    shared = namespace_hosts(count=3, shared_home=True)
    made: list[HostLink] = []
    threads = [threading.Thread(target=lambda h=host: made.append(connect(ssh_to(h)))) for host in shared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(made) == 3
    assert len(list((shared.host(0).home / ".dtrain" / "supervisor").iterdir())) == 1
    for link in made:
        link.close()


@pytest.mark.netns
def test_a_crashed_host_is_lost_at_once(namespace_hosts: Callable[..., Any]) -> None:
    host = namespace_hosts(count=1).host(0)
    link = connect(ssh_to(host))
    frames: Queue[Frame] = Queue()
    link.subscribe("t1.1.1", {}, frames.put).result(timeout=20)
    started_s = time.monotonic()
    host.crash()
    assert frame(frames).t == "lost"
    assert time.monotonic() - started_s < 5
    link.close()
