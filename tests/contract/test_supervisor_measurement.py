"""Measurements of a host by its supervisor: locks of slots, limits, ends, and transfers between hosts."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.supervisor_host import Host, Refusal, until

SLOTS = [{"index": 0, "device": None}]
ASKED: dict[str, Any] = {
    "slots": SLOTS, "store": "s", "token": 5, "python": None, "windows": 1, "disk_bytes": 1 << 20, "cpu_share": 0.0,
    "limit_s": 30.0,
}  # fmt: skip
KEY, NONCE = "k" * 32, "n" * 32


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path / "host")
    yield found
    found.clean()


def script(folder: Path, text: str) -> str:
    """Return an interpreter that runs a script of a shell instead of the measurement."""
    path = folder / "interpreter"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def running(word: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if word in " ".join(one.info["cmdline"] or [])]


@pytest.mark.nightly
def test_a_disk_is_measured_and_no_file_is_left(host: Host) -> None:
    answer = host.channel().call("measure", **ASKED)
    assert answer["exit_code"] == 0
    metrics = {one["metric"]: one["value"] for one in answer["results"] if "metric" in one}
    assert set(metrics) == {"disk_write", "disk_read"}
    assert min(metrics.values()) > 0
    assert not list(host.root.rglob(".dtrain-check-*"))


@pytest.mark.nightly
def test_a_slot_of_a_run_is_not_measured(host: Host) -> None:
    channel = host.channel()
    channel.call("measure", **ASKED)
    [lock] = host.root.rglob("slots/0.lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Refusal, match="slot_busy"):
            channel.call("measure", **ASKED)
    channel.call("measure", **ASKED)


@pytest.mark.nightly
def test_a_slot_that_was_granted_again_is_not_measured(host: Host) -> None:
    channel = host.channel()
    channel.call("measure", **ASKED)
    [lock] = host.root.rglob("slots/0.lock")
    lock.with_name("0.token").write_text('{"s": 6}')
    with pytest.raises(Refusal, match="stale_token"):
        channel.call("measure", **ASKED)


def test_the_lock_of_a_slot_is_held_while_it_is_measured(host: Host, tmp_path: Path) -> None:
    word = f"sleep {10**6 + os.getpid()}"
    channel = host.channel()
    channel.post("measure", **{**ASKED, "python": script(tmp_path, word)})
    until(lambda: running(word))
    with pytest.raises(Refusal, match="slot_busy"):
        channel.call("measure", **ASKED)


def test_the_end_of_the_channel_ends_a_measurement_with_all_of_its_processes(host: Host, tmp_path: Path) -> None:
    word = f"sleep {10**6 + os.getpid()}"
    channel = host.channel()
    channel.post("measure", **{**ASKED, "python": script(tmp_path, f"setsid {word} &\n{word}")})
    until(lambda: len(running(word)) >= 2)
    channel.close()
    until(lambda: not running(word))


def test_a_measurement_ends_at_its_limit_and_keeps_its_results(host: Host, tmp_path: Path) -> None:
    word = f"sleep {10**6 + os.getpid()}"
    python = script(tmp_path, f'echo \'DTRAIN {{"problem": "slow"}}\'\nsetsid {word} &\n{word}')
    answer = host.channel().call("measure", **{**ASKED, "python": python, "limit_s": 2.0})
    assert (answer["results"], answer["exit_code"]) == ([{"problem": "slow"}], None)
    assert not running(word)


def test_endless_output_of_a_measurement_is_bounded(host: Host, tmp_path: Path) -> None:
    python = script(tmp_path, 'yes \'DTRAIN {"problem": "x"}\' | head -c 20000000')
    answer = host.channel().call("measure", **{**ASKED, "python": python})
    assert len(answer["results"]) < 50_000


def test_a_missing_interpreter_is_refused(host: Host) -> None:
    with pytest.raises(Refusal, match="not_found"):
        host.channel().call("measure", **{**ASKED, "python": "/nonexistent/python"})


def test_a_transfer_is_measured_and_needs_the_key(host: Host) -> None:
    channel = host.channel()
    port = channel.call("net_listen", nonce=NONCE, port_range=None, interface="lo", key=KEY)["port"]
    asked: dict[str, Any] = {"nonce": NONCE, "address": "127.0.0.1", "port": port, "seconds": 0.3, "streams": 2}
    answer = channel.call("net_transfer", key=KEY, **asked)
    assert answer["bytes_per_s"] > 1e6
    assert 0 < answer["round_trip_s"] < 1
    with pytest.raises(Refusal, match="no_path"):
        channel.call("net_transfer", key="x" * 32, **asked)
    channel.call("net_close", nonce=NONCE)
    with pytest.raises(Refusal, match="no_path"):
        channel.call("net_transfer", key=KEY, **asked)


def test_a_port_without_a_key_accepts_no_transfer(host: Host) -> None:
    channel = host.channel()
    port = channel.call("net_listen", nonce=NONCE, port_range=None, interface="lo")["port"]
    asked = {"nonce": NONCE, "address": "127.0.0.1", "port": port, "seconds": 0.3, "streams": 1}
    with pytest.raises(Refusal, match="no_path"):
        channel.call("net_transfer", key=KEY, **asked)


@pytest.mark.nightly
def test_this_interpreter_measures_cpus(host: Host) -> None:
    answer = host.channel().call("measure", **{**ASKED, "python": sys.executable, "disk_bytes": 0, "cpu_share": 0.01})
    assert {one.get("metric") for one in answer["results"]} >= {"memory"}
