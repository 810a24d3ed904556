"""Suspected leftover processes of a run: the place of a process, and the process that adopts orphans."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.__main__ import parser
from airflow_provider_dtrain.supervisor.machine.processes import Proc, is_ours, read_proc
from airflow_provider_dtrain.supervisor.names import ROLES, WARM_ROLE
from airflow_provider_dtrain.supervisor.run.leftovers import is_suspect, orphans_parents, place_of


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({}, True),
        ({"login": "123456"}, False),
        ({"group": [":/user.slice/user-0.slice/session-7.scope"]}, False),
    ],
)
def test_a_process_of_another_login_or_another_unit_of_systemd_is_not_suspected(
    change: dict[str, object], is_one: bool
) -> None:
    own = read_proc(os.getpid())
    assert own is not None
    assert is_suspect(own, {**place_of(os.getpid()), **change}) is is_one


def test_what_a_run_of_an_older_version_did_not_tell_excludes_no_process() -> None:
    own = read_proc(os.getpid())
    assert own is not None
    assert is_suspect(own, {})
    assert orphans_parents({}, {1: Proc(1, 0, 1, "S", 5)}) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of another account needs root")
def test_a_process_of_another_account_is_not_suspected() -> None:
    other = subprocess.Popen(["sleep", "100"], user=54_321)
    try:
        proc = read_proc(other.pid)
        assert proc is not None
        assert not is_suspect(proc, place_of(other.pid))
    finally:
        other.kill()
        other.wait()


def test_orphans_go_to_the_nearest_heir_and_once_it_is_gone_to_any_above_it() -> None:
    heirs = {"heirs": [{"pid": 30, "start_time": 300}, {"pid": 20, "start_time": 200}, {"pid": 1, "start_time": 5}]}
    procs = {pid: Proc(pid, 1, pid, "S", start) for pid, start in ((1, 5), (20, 200), (30, 300))}
    assert orphans_parents(heirs, procs) == {30}
    procs[30] = Proc(30, 1, 30, "S", 999)
    assert orphans_parents(heirs, procs) == {20, 1}, "its pid is of another process now"
    del procs[20]
    assert orphans_parents(heirs, procs) == {1}


def test_every_role_of_the_command_line_is_recognized_as_one() -> None:
    (roles,) = (action for action in parser()._actions if action.dest == "role")
    assert roles.choices is not None
    assert sorted(roles.choices) == sorted([*ROLES, WARM_ROLE])


@pytest.mark.parametrize(
    ("path", "role", "is_role"),
    [
        (f"supervisor/{'0' * 64}", "follow", True),
        (f"supervisor/{'0' * 64}.py", "start", False),
        (f"supervisor/{'0' * 64}", "train", False),
        (f"supervisor/{'0' * 64}/train.py", "start", False),
        ("supervisor.py", "follow", False),
        ("train/supervisor.py", "start", False),
    ],
)
def test_only_roles_of_the_supervisor_are_taken_for_such(tmp_path: Path, path: str, role: str, is_role: bool) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("print(flush=True)\nimport time\ntime.sleep(100)\n")
    process = subprocess.Popen([sys.executable, "-I", str(file), role], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        process.stdout.readline()
        assert is_ours(process.pid) is is_role
    finally:
        process.kill()
        process.wait()
