"""Host checks of real hosts: healthy ones, slowed ones, hostile ones, and checks that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.core.host_rates import RateMetric
from airflow_provider_dtrain.core.lifecycle.timing import CHECK_HOLD_S
from airflow_provider_dtrain.engine.attempt import host_rates
from airflow_provider_dtrain.engine.operations.execution import serve
from airflow_provider_dtrain.errors import GangEndedError, NotNowError
from airflow_provider_dtrain.store.database.connections import utcnow
from airflow_provider_dtrain.store.records.operations import Through
from airflow_provider_dtrain.store.store import Store
from testbed.netns import NamespaceHosts
from testbed.standalone import wait_until
from tests.support.api_world import Api
from tests.support.checked_hosts import CPU_GROUPS, CheckedHosts
from tests.support.http_api import HttpApi

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.slow]

needs_cgroups = pytest.mark.skipif(not CPU_GROUPS.is_dir(), reason="the CPU controller of cgroups v1 is not mounted")


@pytest.fixture(scope="module")
def fleet(
    namespace_hosts: Callable[..., NamespaceHosts], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CheckedHosts]:
    """Three hosts with two CPU slots each."""
    with pytest.MonkeyPatch.context() as patch:
        fleet = CheckedHosts(namespace_hosts(count=3, slots=2), tmp_path_factory.mktemp("fleet"), patch)
        yield fleet
        fleet.close()


def measuring(fleet: CheckedHosts, name: str) -> list[str]:
    """Return the command lines of a host's processes that measure."""
    inside = ["nsenter", "-t", str(fleet.host(name).init_pid), "-m", "-p", "ps", "-eo", "args"]
    lines = subprocess.run(inside, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    return [line for line in lines if "Program that measures rates" in line or " supervise " in line]


def left_files(fleet: CheckedHosts) -> list[Path]:
    return [path for host in fleet.hosts for path in host.folder.rglob(".dtrain-check-*")]


def interpreter(fleet: CheckedHosts, folder: Path, name: str, script: str) -> str:
    """Return an interpreter for all hosts that on one host runs a script instead of the measurement."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nif [ "$(hostname)" = {name} ]; then\n{script}\nfi\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    for host in fleet.hosts:
        target = Path(f"/proc/{host.init_pid}/root/run/python")
        target.write_text(path.read_text())
        target.chmod(0o755)
    return "/run/python"


# -- statistics of real hosts ---------------------------------------------------------------------------
@pytest.mark.nightly
def test_healthy_hosts_are_measured_and_not_named(fleet: CheckedHosts) -> None:
    found = fleet.check()
    assert (fleet.named(found), found.problems) == ({}, {})
    per_host = {RateMetric.MATMUL, RateMetric.MEMORY, RateMetric.DISK_WRITE, RateMetric.DISK_READ}
    for name in fleet.names:
        assert {rate.metric for rate in found.rates if rate.host == name and rate.peer is None} == per_host
        peers = {rate.peer for rate in found.rates if rate.host == name and rate.metric is RateMetric.LINK}
        assert peers == set(fleet.names) - {name}
    assert fleet.held() == []
    assert left_files(fleet) == []


@pytest.mark.nightly
def test_twenty_checks_of_healthy_hosts_name_no_host(fleet: CheckedHosts) -> None:
    assert [fleet.named(fleet.check()) for _ in range(20)] == [{}] * 20


@needs_cgroups
@pytest.mark.nightly
def test_a_host_with_a_cpu_quota_is_named_until_the_quota_is_gone(fleet: CheckedHosts) -> None:
    slow = fleet.names[1]
    fleet.limit_cpu(slow, 0.1)
    try:
        named = fleet.named(fleet.check())
    finally:
        fleet.limit_cpu(slow, None)
    assert list(named) == [slow]
    assert any(text.startswith("matrix products: ") for text in named[slow])
    stored = {record.name: record.findings for record in fleet.hook.store.hosts.list()}
    assert stored[slow].splitlines() == sorted(named[slow], key=stored[slow].index)
    assert [stored[name] for name in fleet.names if name != slow] == ["", ""]
    fleet.check()
    assert fleet.hook.store.hosts.get(slow).findings == ""


@pytest.mark.nightly
def test_a_host_behind_a_throttled_link_is_named_and_not_the_hosts_that_send_to_it(fleet: CheckedHosts) -> None:
    slow = fleet.names[2]
    fleet.host(slow).throttle("200mbit")
    try:
        named = fleet.named(fleet.check())
    finally:
        fleet.host(slow).throttle("")
    assert list(named) == [slow]
    assert "network: it receives 2" in named[slow][0]


# -- slots --------------------------------------------------------------------------------------------------
def test_slots_in_use_are_an_error_that_names_their_holder(fleet: CheckedHosts) -> None:
    rates = fleet.hook.store.host_rates
    held = rates.hold(fleet.names[:1], by="other")
    try:
        with pytest.raises(NotNowError, match=rf"in use on {fleet.names[0]}: gang of .*--wait"):
            fleet.check()
    finally:
        rates.release([one.allocation_id for one in held])
    assert fleet.held() == []


@pytest.mark.nightly
def test_a_check_waits_for_slots_that_are_in_use(fleet: CheckedHosts) -> None:
    rates = fleet.hook.store.host_rates
    [held] = rates.hold(fleet.names[:1], by="other")
    reasons: list[str] = []

    def on_wait(reason: str) -> None:
        reasons.append(reason)
        rates.release([held.allocation_id])

    found = fleet.check(fleet.names[:1], wait_s=60.0, on_wait=on_wait)
    assert len(reasons) == 1
    assert {rate.host for rate in found.rates} == {fleet.names[0]}


@pytest.mark.nightly
def test_a_killed_check_leaves_no_process_and_no_file_and_its_slots_become_free(
    fleet: CheckedHosts, tmp_path: Path
) -> None:
    program = (
        "import dataclasses, sys\n"
        "from airflow_provider_dtrain.engine.operations.host_rates import check_hosts\n"
        "from airflow_provider_dtrain.hooks.dtrain import DtrainHook\n"
        "from airflow_provider_dtrain.hooks.settings import settings\n"
        "hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=sys.argv[1]))\n"
        "check_hosts(hook, hook.store.hosts.list(), by='killed')\n"
    )
    url = fleet.hook.settings.sql_alchemy_conn
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", program, url], stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: all(measuring(fleet, name) for name in fleet.names), what="the measurement", timeout_s=60)
        assert len(fleet.held()) == 6
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(
        lambda: not any(measuring(fleet, name) for name in fleet.names), what="the end of the measurement", timeout_s=30
    )
    assert left_files(fleet) == []
    later = Store.open(url, clock=lambda: utcnow() + timedelta(seconds=CHECK_HOLD_S + 1))
    later.queue.schedule("gpus")
    assert fleet.held() == []
    assert fleet.check(fleet.names[:1]).problems == {}


# -- hostile hosts --------------------------------------------------------------------------------------------
@pytest.mark.nightly
def test_absurd_results_of_a_host_are_problems_and_the_other_hosts_are_measured(
    fleet: CheckedHosts, tmp_path: Path
) -> None:
    hostile = fleet.names[1]
    lines = [
        'DTRAIN {"metric": "matmul", "slot": null, "kind": "AMD", "value": NaN}',
        'DTRAIN {"metric": "matmul", "slot": null, "kind": "AMD", "value": 1e300}',
        'DTRAIN {"metric": "matmul", "slot": 999, "kind": "AMD", "value": 1e12}',
        'DTRAIN {"metric": "memory", "slot": null, "kind": ["x"], "value": "fast"}',
        "DTRAIN {{{{",
        "rm -rf /",
    ]
    script = "".join(f"echo '{line}'\n" for line in lines) + "yes | head -c 5000000\nexit 0"
    found = fleet.check(python=interpreter(fleet, tmp_path, hostile, script))
    assert [rate for rate in found.rates if rate.host == hostile and rate.peer is None] == []
    assert hostile in found.problems
    assert {rate.host for rate in found.rates if rate.metric is RateMetric.MATMUL} == {*fleet.names} - {hostile}
    assert fleet.held() == []


@pytest.mark.nightly
def test_a_measurement_that_hangs_is_ended_with_all_of_its_processes(
    fleet: CheckedHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = fleet.names[1]
    monkeypatch.setattr(host_rates, "START_S", 4.0)
    word = f"sleep {10**6 + os.getpid()}"
    python = interpreter(fleet, tmp_path, hanging, f"setsid {word} &\n{word}")
    begun = time.monotonic()
    found = fleet.check([hanging], python=python)
    assert time.monotonic() - begun < 60
    assert found.problems[hanging] == ["the measurement did not end within 12 s, or was killed"]
    inside = ["nsenter", "-t", str(fleet.host(hanging).init_pid), "-m", "-p", "ps", "-eo", "args"]
    assert word not in subprocess.run(inside, capture_output=True, text=True, timeout=30, check=True).stdout
    assert fleet.held() == []


def test_a_host_without_pytorch_says_so_and_its_other_rates_are_measured(fleet: CheckedHosts, tmp_path: Path) -> None:
    bare = fleet.names[0]
    script = f'shift\nexec {sys.executable} -I -S "$@"'
    found = fleet.check([bare], python=interpreter(fleet, tmp_path, bare, script))
    assert any("PyTorch is missing" in text for text in found.problems[bare])
    assert {rate.metric for rate in found.rates} == {RateMetric.MEMORY, RateMetric.DISK_WRITE, RateMetric.DISK_READ}


@pytest.mark.nightly
def test_a_host_that_is_cut_off_is_a_problem_and_the_other_hosts_are_measured(fleet: CheckedHosts) -> None:
    away = fleet.names[2]
    fleet.hook.links.close_all()
    fleet.host(away).partition()
    try:
        found = fleet.check()
    finally:
        fleet.host(away).heal()
    assert away in found.problems
    assert {rate.host for rate in found.rates} == {*fleet.names} - {away}
    assert fleet.held() == []


def test_a_check_whose_slots_a_user_releases_stores_nothing(fleet: CheckedHosts) -> None:
    """The slots belong to another gang then, so what was measured is worth nothing."""
    name = fleet.names[0]
    before = len(fleet.hook.store.host_rates.past([name]))
    ended = threading.Event()

    def end() -> None:
        wait_until(fleet.held, what="the held slots", timeout_s=30)
        fleet.hook.store.gangs.end(fleet.held()[0].allocation_id, "a user ended it")
        ended.set()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(GangEndedError, match="released meanwhile"):
        fleet.check([name])
    thread.join()
    assert ended.is_set()
    assert len(fleet.hook.store.host_rates.past([name])) == before


@pytest.mark.nightly
@pytest.mark.airflow
def test_a_check_over_the_api_measures_stores_and_prints(fleet: CheckedHosts, tmp_path, monkeypatch, capsys) -> None:
    store, hook, names = fleet.hook.store, fleet.hook, fleet.names[:2]

    def trigger(conf: dict[str, int], *_: object) -> str:
        taken = store.operations.take(conf["operation"], Through.DAG)
        threading.Thread(target=serve, args=(hook, taken)).start()
        return "run-1"

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", trigger)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    with HttpApi(Api(store, operations=True)) as server:
        code = main(["hosts", "check", *names, "-o", "json", "--server", server.url])
        shown = capsys.readouterr()
        assert code in (0, 1), shown.err
        rates = json.loads(shown.out)
        assert {rate["host"] for rate in rates} == set(names)
        assert {rate["metric"] for rate in rates} == {metric.value for metric in RateMetric}
        assert fleet.held() == []
        assert main(["hosts", "describe", names[0], "-o", "json", "--server", server.url]) == 0
        stored = json.loads(capsys.readouterr().out)["rates"]
        own = {(rate["metric"], rate["to"]): rate["value"] for rate in rates if rate["host"] == names[0]}
        # Results of links to the third host may be left from another test.
        kept = {(one["metric"], one["to"]): one["value"] for one in stored if one["host"] == names[0]}
        assert {key: kept.get(key) for key in own} == own
