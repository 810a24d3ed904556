"""Plans, networks and mounts, as read by a supervisor."""

from __future__ import annotations

import ast
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain import supervisor
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.machine import host as host_module
from airflow_provider_dtrain.supervisor.machine import network as network_module
from airflow_provider_dtrain.supervisor.machine.host import mount_of
from airflow_provider_dtrain.supervisor.machine.network import (
    InterfaceAddress,
    Link,
    addresses,
    candidates,
    interface_of,
)
from airflow_provider_dtrain.supervisor.machine.sockets import bind_everywhere
from airflow_provider_dtrain.supervisor.refusal import Refused, print_traceback, refuse_os_error
from airflow_provider_dtrain.supervisor.run.plan import check_plan, plan_slots
from tests.support.supervisor_host import make_plan

PACKAGE = Path(supervisor.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_a_module_needs_only_the_standard_library_pynvml_and_python_3_9(file: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(), feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not 1 <= node.level <= len(file.relative_to(PACKAGE).parts):
            imported.add((node.module or "..").partition(".")[0])
    allowed = {"pynvml"} if file.stem == "gpu" else set()
    assert imported <= sys.stdlib_module_names | {"__future__"} | allowed


def test_a_plan_is_filled_with_defaults() -> None:
    plan = make_plan("t1.1.7", "true")
    for name in ("grace_s", "orphan_timeout_s", "timeout_s", "log_limit_bytes", "env", "port_range"):
        del plan[name]
    found = check_plan({**plan, "unknown": 1})
    assert (found["grace_s"], found["orphan_timeout_s"], found["timeout_s"]) == (30, 900, None)
    assert "unknown" not in found


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("plan.ranks.1.rank", {"rank": 0}),
        ("plan.ranks.1.slot", {"slot": 0}),
        ("plan.ranks.1.local_rank", {"local_rank": 0}),
        ("plan.ranks.1.rank", {"rank": 2}),
        ("plan.ranks.1.slot", {"slot": -2}),
        ("plan.ranks.1.device", {"device": "a b"}),
        ("plan.ranks.1.visible_devices", {"device": "GPU-1", "visible_devices": ["GPU-0"]}),
        ("plan.ranks.1.visible_devices.0", {"visible_devices": ["GPU-0,GPU-1"]}),
    ],
)
def test_a_bad_rank_is_named(field: str, change: dict[str, Any]) -> None:
    plan = make_plan("t1.1.7", "true", ranks=2)
    plan["ranks"][1].update(change)
    with pytest.raises(Refused) as refused:
        check_plan(plan)
    assert (refused.value.code, refused.value.details["field"]) == ("bad_plan", field)


def test_slotless_ranks_take_no_slot() -> None:
    plan = make_plan("t1.1.7", "true", ranks=2)
    for rank in plan["ranks"]:
        rank["slot"] = -1
    assert plan_slots(check_plan(plan)) == []


def address(name: str, text: str, *, flags: int = 0x1043, kind: str = "", scope: int = 0) -> InterfaceAddress:
    family = "inet6" if ":" in text else "inet"
    return InterfaceAddress(family, text, 24, scope, 0, Link(1, name, flags, 1500, kind))


def test_only_addresses_that_others_may_reach_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        address("lo", "127.0.0.1", flags=0x49, scope=254),
        address("eth0", "10.0.0.1", kind="veth"),
        address("eth0", "fe80::1", scope=253),
        address("eth1", "169.254.1.1"),
        address("eth2", "10.0.2.1", flags=0x1002),
        address("docker0", "172.17.0.1"),
        address("br-12ab", "172.18.0.1", kind="bridge"),
        address("vmbr0", "10.0.3.1", kind="bridge"),
        address("ib0", "fd00::7"),
    ]
    monkeypatch.setattr(network_module, "addresses", lambda: given)
    assert [found["address"] for found in candidates()] == ["10.0.0.1", "fd00::7"]
    monkeypatch.setattr(network_module, "addresses", lambda: [given[0], given[5], given[7]])
    assert [found["address"] for found in candidates()] == ["10.0.3.1"], "a host bridged for its machines"


def test_the_kernel_tells_the_loopback_address() -> None:
    found = {one.address: one for one in addresses()}
    assert found["127.0.0.1"].link.name == "lo"
    assert found["127.0.0.1"].link.mtu > 0
    assert interface_of("127.0.0.1") == "lo"


def test_a_bound_port_is_exclusive_until_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_everywhere(0) as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            bind_everywhere(port)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            bind_everywhere(port)
        with socket.socket() as rank0:
            rank0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rank0.bind(("127.0.0.1", port))
            rank0.listen()


def test_the_mount_of_a_path_is_the_longest_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        "2 1 0:5 / /home rw - nfs4 server:/home rw\n"
        "3 1 0:6 / /home\\040office rw - ext4 /dev/b rw"
    )
    monkeypatch.setattr(host_module, "read_text", lambda path: mounts)
    assert mount_of("/home/a/.dtrain") == ("/home", "nfs4")
    assert mount_of("/home office/a") == ("/home office", "ext4")
    assert mount_of("/homework") == ("/", "ext4")
    with pytest.raises(Refused) as refused:
        Layout("r", "/home/a/state").ensure()
    assert refused.value.code == "state_dir"
    assert "nfs4" in refused.value.message
    assert not os.path.exists("/home/a/state")


def test_system_errors_have_codes_of_their_own() -> None:
    codes = [refuse_os_error(OSError(number, "words", "/x")).code for number in (28, 122, 30, 13, 5)]
    assert codes == ["disk_full", "disk_full", "read_only", "read_only", "os_error"]


def test_an_error_of_a_supervisor_is_printed_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("lost")
    except ValueError:
        print_traceback()
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ValueError: lost")
    assert Path(__file__).name in lines[1]
