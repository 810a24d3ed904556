"""A bastion never has more unauthenticated connections of this process than sshd accepts without dropping some."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.transport import handshakes
from airflow_provider_dtrain.hosts.transport.handshakes import MOST_BEGUN, Handshakes, handshakes_of
from airflow_provider_dtrain.hosts.transport.proxy import bastion_of


def test_the_bound_is_below_that_of_sshd() -> None:
    assert MOST_BEGUN < 10


def test_further_connections_wait_until_one_has_its_first_bytes() -> None:
    bastion, lock = Handshakes(), threading.Lock()
    begun, most = 0, 0

    def connect(_: int) -> None:
        nonlocal begun, most
        with bastion.beginning(time.monotonic() + 30):
            with lock:
                begun += 1
                most = max(most, begun)
            threading.Event().wait(0.01)
            with lock:
                begun -= 1

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(connect, range(80)))
    assert most == MOST_BEGUN


def test_a_connection_that_fails_gives_its_place_back() -> None:
    bastion = Handshakes()
    for _ in range(3 * MOST_BEGUN):
        with pytest.raises(OSError, match="no route"), bastion.beginning(time.monotonic() + 5):
            raise OSError("no route")


def test_hosts_that_are_down_behind_a_bastion_keep_the_others_waiting_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "COUNTED_S", 0.05)
    bastion, end = Handshakes(), threading.Event()

    def wait_for_a_host() -> None:
        with bastion.beginning(time.monotonic() + 30):
            end.wait(30)

    with ThreadPoolExecutor(3 * MOST_BEGUN) as pool:
        waiting = [pool.submit(wait_for_a_host) for _ in range(3 * MOST_BEGUN)]
        with bastion.beginning(time.monotonic() + 20):
            assert not any(one.done() for one in waiting)
        end.set()


def test_no_place_before_the_deadline_is_a_time_out() -> None:
    bastion = Handshakes()
    inside = [bastion.beginning(time.monotonic() + 5) for _ in range(MOST_BEGUN)]
    for one in inside:
        one.__enter__()
    begun = time.monotonic()
    with pytest.raises(TimeoutError), bastion.beginning(begun + 0.05):
        raise AssertionError
    assert time.monotonic() - begun < 2


def test_a_forked_child_takes_no_place_of_its_parent() -> None:
    ours = handshakes_of("gate")
    assert handshakes_of("gate") is ours
    assert handshakes_of("other") is not ours
    if (pid := os.fork()) == 0:
        os._exit(handshakes_of("gate") is ours)
    assert os.waitpid(pid, 0)[1] == 0


def hook(host: str, command: str) -> Any:
    return SimpleNamespace(remote_host=host, host_proxy_cmd=command)


def test_hosts_behind_one_bastion_are_counted_together() -> None:
    command = "ssh -o BatchMode=yes -W {}:22 -i /keys/{} ssh://me@gate"
    names = {
        bastion_of(hook(host, command.format(host, "id"))) for host in ("a", "b", "gpu-1", "10.0.0.1", "10.0.0.10")
    }
    assert len(names) == 1
    assert bastion_of(hook("a", "ssh -W a:22 gate-1")) != bastion_of(hook("a", "ssh -W a:22 gate-2"))
    # An address that is a part of another word is not that of the host.
    assert bastion_of(hook("a", "ssh -W a:22 a.example")) == "ssh -W %h:22 a.example"
    assert bastion_of(hook("fe80::1", "ssh -W '[fe80::1]:22' gate")) == "ssh -W '[%h]:22' gate"
