"""Setup scripts of environments on a host: their variables, failures, limits and processes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.environments import setup_script, supervised
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.refusal import Refused
from testbed.wheels import index_server, locked, make_wheel, until_ready
from tests.support.environment_hosts import Asking
from tests.support.supervisor_host import (
    SUPERVISOR,
    Host,
    is_alive,
    make_plan,
    start,
    until,
)

pytest_plugins = ["tests.support.environment_hosts"]


@pytest.fixture
def host(uv_host: Host) -> Host:
    return uv_host


SETUP = """
export TOOLS=/opt/tools PATH="$PWD/bin:$PATH" RANK=7 CUDA_VISIBLE_DEVICES=3 MASTER_PORT=1
export DTRAIN_OF_SCRIPT=x VIRTUAL_ENV=/script
echo a line of the script
local_only=1
"""


def sent(host: Host, script: str) -> dict[str, str]:
    return {"payload": host.send_archive("payloads", {"setup.sh": script, "other.txt": "x"}), "path": "setup.sh"}


def test_a_setup_script_gives_variables_to_ranks_but_not_those_of_the_launch(bare: Host) -> None:
    channel = bare.channel()
    setup = sent(bare, SETUP)
    found = channel.call("environment", environment={"python": "/usr/bin/python3"}, setup=setup)
    assert (found["state"], found["digest"], found["python"]) == ("ready", None, "/usr/bin/python3")
    assert found["refused_variables"] == [
        "CUDA_VISIBLE_DEVICES",
        "DTRAIN_OF_SCRIPT",
        "MASTER_PORT",
        "RANK",
        "VIRTUAL_ENV",
    ]
    program = ("python", "-c", "import os; print(sorted(os.environ.items()), flush=True)")
    plan = make_plan("t1.1.7", *program, setup="setup.sh", payload=setup["payload"], env={"MINE": "1"})
    start(channel, plan)
    channel.wait_event("t1.1.7", "ended")
    output = (bare.run_dir("t1.1.7") / "rank0" / "log").read_text()
    assert "('TOOLS', '/opt/tools')" in output
    assert "('MINE', '1')" in output
    assert "('RANK', '0')" in output
    assert "('CUDA_VISIBLE_DEVICES', '')" in output
    assert "local_only" not in output
    assert "DTRAIN_OF_SCRIPT" not in output
    assert "/script" not in output
    plan = make_plan(
        "t2.1.8", *program, setup="setup.sh", payload=setup["payload"], env={"TOOLS": "of the configuration"}
    )
    start(channel, plan)
    channel.wait_event("t2.1.8", "ended")
    assert "('TOOLS', 'of the configuration')" in (bare.run_dir("t2.1.8") / "rank0" / "log").read_text()


@pytest.mark.parametrize(
    ("script", "message", "line"),
    [
        ("echo first; echo no such module >&2; return 3", "setup.sh ended with status 3.", "no such module"),
        ("seq 1000000; exit 4", "setup.sh ended with status 4.", "1000000"),
        ("export BIG=$(head -c 2000000 /dev/zero | tr '\\0' x)", "setup.sh ended with status 126.", ""),
        ("echo waits; sleep 1000", "setup.sh did not end within 1 s.", "waits"),
        ("sleep 1000 & disown; echo left; return 5", "setup.sh ended with status 5.", "left"),
    ],
    ids=["status", "output", "variables", "time", "background"],
)
def test_a_setup_script_that_fails_or_hangs_is_named_with_its_last_lines(
    bare: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str, line: str
) -> None:
    setup = sent(bare, script)
    monkeypatch.setattr(supervised, "program", lambda: str(SUPERVISOR))
    monkeypatch.setattr(setup_script, "SETUP_S", 1.0 if "waits" in script else 30.0)
    layout = Layout(str(bare.remote_dir), str(bare.state_dir))
    layout.ensure()
    with pytest.raises(Refused) as refused:
        setup_script.run_setup(layout, setup["payload"], setup["path"])
    assert refused.value.code == "setup"
    assert refused.value.message == message
    assert line in "\n".join(refused.value.details["lines"])
    assert len("".join(refused.value.details["lines"])) < 64 << 10
    assert list(bare.state_dir.glob("setup-*")) == []


@pytest.mark.parametrize("ends", ["return 0", "exit 3", "sleep 1000"], ids=["succeeds", "fails", "hangs"])
def test_processes_that_a_setup_script_detaches_end_with_it(
    bare: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    pids = tmp_path / "pids"
    detached = f"setsid -f sh -c 'echo $$ >> {pids}; exec sleep 900' </dev/null >/dev/null 2>&1"
    setup = sent(bare, f"{detached}\n({detached}) &\nwhile [ $(wc -l < {pids}) -lt 2 ]; do sleep 0.01; done\n{ends}")
    pids.touch()
    monkeypatch.setattr(supervised, "program", lambda: str(SUPERVISOR))
    monkeypatch.setattr(setup_script, "SETUP_S", 2.0 if "sleep" in ends else 30.0)
    layout = Layout(str(bare.remote_dir), str(bare.state_dir))
    layout.ensure()
    with contextlib.suppress(Refused):
        setup_script.run_setup(layout, setup["payload"], setup["path"])
    assert len(pids.read_text().split()) == 2
    until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()), "their end", timeout_s=5)


def test_a_setup_script_ends_with_the_channel_that_asked_for_it(bare: Host, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    setup = sent(bare, f"setsid -f sh -c 'echo $$ > {pids}; exec sleep 900' </dev/null >/dev/null 2>&1\nsleep 900")
    channel = bare.channel()
    channel.post("environment", environment={"python": "/usr/bin/python3"}, setup=setup)
    until(lambda: pids.exists() and pids.read_text().strip(), "the start of the process")
    channel.process.kill()
    until(lambda: not is_alive(int(pids.read_text())), "the end of the process")


@pytest.mark.nightly
def test_a_setup_script_runs_once_for_a_build_and_not_for_each_question_about_it(host: Host, tmp_path: Path) -> None:
    wheels, runs = tmp_path / "index", tmp_path / "runs"
    with index_server(wheels) as server:
        lock = locked(make_wheel(wheels, "demo-one"))
        asking = Asking(host.channel(), lock, index={"urls": [server.url]}, python=sys.executable)
        setup = sent(host, f"echo run >> {runs}; export TOOLS=/opt/tools")
        build = {**asking.build(), "id": "build-1"}
        asking.state(build=build, waits_for="build-1", setup=setup)
        runs.unlink()
        until_ready(lambda: asking.state(waits_for="build-1", wait_s=1, setup=setup))
    assert not runs.exists()


@pytest.mark.nightly
def test_the_compiler_that_a_setup_script_chooses_is_part_of_the_environment(host: Host, tmp_path: Path) -> None:
    asking = Asking(host.channel(), locked(make_wheel(tmp_path, "demo-one")), python=sys.executable)
    digests = [
        asking.state(setup=sent(host, script))["digest"]
        for script in ("export CC=gcc-12", "export CC=gcc-13", "export CC=gcc-13 OTHER=1")
    ]
    assert digests[0] != digests[1] == digests[2]


def test_the_interpreter_of_a_setup_script_is_found_in_its_path(bare: Host, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "python3").symlink_to(sys.executable)
    setup = sent(bare, f"export PATH={tmp_path}/modules:$PATH")
    found = bare.channel().call("environment", environment={"python": None}, setup=setup)
    assert found["python"] == f"{tmp_path}/modules/python3"
    found = bare.channel().call("preflight", python=None, modules=["json"], slots=[], setup=setup)
    assert found["problems"] == []
