"""``airflow dtrain hosts`` and what builds on it, with real hosts behind real sshd."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.netns import NamespaceHost, NamespaceHosts
from tests.support.cli_world import World

pytest_plugins = ["testbed.netns.plugin", "tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.netns]


NAMES = ("gpu-01", "gpu-02")
OPTIONS = ("--pool", "lab", "--slots", "cpu:2", "--python", sys.executable)


def on_a_terminal(world: World, *arguments: str, answer: str) -> tuple[int, str]:
    """Return exit status and everything shown by a command on a terminal whose question is answered."""
    ours, theirs = pty.openpty()
    shown, answered, deadline = b"", False, time.monotonic() + 120
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(world.on_terminal, os.ttyname(theirs), "dtrain", *arguments)
        ended.add_done_callback(lambda _: os.close(theirs))
        with contextlib.suppress(OSError):  # The terminal ends with the command.
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 1.0)[0]:
                    continue
                shown += os.read(ours, 65536)
                if not answered and b"[y/N]" in shown:
                    answered = True
                    os.write(ours, answer.encode() + b"\n")
        os.close(ours)
    return ended.result(), shown.decode(errors="replace")


@pytest.fixture(scope="module")
def machines(
    namespace_hosts: Callable[..., NamespaceHosts], world: World
) -> Iterator[tuple[NamespaceHost, NamespaceHost]]:
    made = namespace_hosts(count=2)
    for host, conn_id in zip(made, ("first_conn", "second_conn"), strict=True):
        world.connect(host, conn_id)
    yield made.host(0), made.host(1)
    forget(world)


def forget(world: World) -> None:
    for row in world.rows("hosts", "list"):
        assert world("hosts", "remove", row["name"], "--force", "-y").code == 0


@pytest.fixture
def unregistered(world: World, machines: tuple[NamespaceHost, NamespaceHost]) -> tuple[NamespaceHost, NamespaceHost]:
    """Both machines, none of them registered."""
    forget(world)
    return machines


@pytest.fixture
def registered(world: World, machines: tuple[NamespaceHost, NamespaceHost]) -> tuple[NamespaceHost, NamespaceHost]:
    """Both machines, registered as gpu-01 and gpu-02 in the pool ``lab``."""
    known = {row["name"] for row in world.rows("hosts", "list")}
    for name, conn_id, machine in zip(NAMES, ("first_conn", "second_conn"), machines, strict=True):
        if name not in known:
            done = world("hosts", "add", name, "--conn", conn_id, *OPTIONS, "--accept-host-key", fingerprint(machine))
            assert done.code == 0, done.err
    return machines


def fingerprint(host: NamespaceHost) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", "-"], input=host.host_key, capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_a_host_behind_ssh_is_registered_with_a_key_that_somebody_accepted(
    world: World, unregistered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    add = ("hosts", "add", "gpu-01", "--conn", "first_conn", *OPTIONS)
    right, wrong = fingerprint(unregistered[0]), fingerprint(unregistered[1])
    unasked = world(*add)
    assert unasked.code == 1
    assert f"--accept-host-key {right}" in unasked.err
    refused = world(*add, "--accept-host-key", wrong)
    assert refused.code == 1
    assert right in refused.err
    assert world.rows("hosts", "list") == []
    assert world(*add, "--accept-host-key", right, "--dry-run").code == 0
    assert world.rows("hosts", "list") == []

    found = world.rows(*add, "--accept-host-key", right)
    assert (found["host"], found["pool"], found["slots"]) == ("gpu-01", "lab", "2 x CPU")
    assert found["python"].startswith("3.")
    row = world.rows("hosts", "list")[0]
    assert (row["name"], row["state"], row["slots"], row["connection"]) == ("gpu-01", "ready", 2, "first_conn")
    assert [(slot["host"], slot["slot"], slot["state"]) for slot in world.rows("slots", "list")] == [
        ("gpu-01", 0, "free"),
        ("gpu-01", 1, "free"),
    ]
    again = world(*add, "--accept-host-key", right)
    assert (again.code, "registered already" in again.err) == (1, True)
    assert "hosts remove" in again.err, "the way to other slots"
    add_twin = ("hosts", "add", "twin", *add[3:])
    twin = world(*add_twin, "--accept-host-key", right)
    assert twin.code == 1
    assert "is the same machine as host 'gpu-01'" in twin.err


def test_a_person_at_a_terminal_is_asked_about_the_key(
    world: World, unregistered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    add = ("hosts", "add", "gpu-02", "--conn", "second_conn", *OPTIONS)
    code, shown = on_a_terminal(world, *add, answer="n")
    assert (code, "Nothing was registered" in shown) == (1, True), shown
    code, shown = on_a_terminal(world, *add, answer="y")
    assert fingerprint(unregistered[1]) in shown
    assert code == 0, shown
    assert "Next: airflow dtrain" in shown
    assert [row["name"] for row in world.rows("hosts", "list")] == ["gpu-02"]


def test_a_host_without_a_usable_interpreter_says_what_to_install(
    world: World, registered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    key = ("--accept-host-key", fingerprint(registered[0]))
    done = world("hosts", "add", "x", "--conn", "first_conn", "--python", "/no/python3", *key)
    assert done.code == 1
    assert "interpreter '/no/python3' does not exist" in done.err
    assert "Install it" in done.err


LIAR = """#!%s
import json, sys, time
if sys.argv[2:3] != ["follow"] and "-c" in sys.argv: print("@"); raise SystemExit(0)
hello = {"protocol": 1, "machine_id": "m", "boot_id": "b", "pid_ns": 1, "uid": 0, "python": "3.11.7",
         "executable": "/x", "state_dir": "/x", "boottime_s": 1.0, "hostname": "liar"}
if %r == "noise":
    print("\\x1b[2Jwelcome " * 20000, flush=True)
else:
    print("DTRAIN/1 " + json.dumps(hello), flush=True)
    for line in sys.stdin:
        document = json.loads(line)
        if "id" in document:
            answer = {"re": document["id"], "ok": True, "gpus": [{"uuid": 7}], "cpu_count": "\\x1b[31mmany"}
            print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("how", ["noise", "facts"])
def test_a_host_that_answers_nonsense_is_not_registered(
    world: World, registered: tuple[NamespaceHost, NamespaceHost], how: str
) -> None:
    liar = Path(world.file(f"liar-{how}", LIAR % (sys.executable, how)))
    liar.chmod(0o755)
    key = ("--accept-host-key", fingerprint(registered[0]))
    done = world("hosts", "add", "liar", "--conn", "first_conn", "--python", str(liar), *key)
    assert done.code == 1
    assert "Host 'liar'" in done.err or "host 'liar'" in done.err
    assert "\x1b" not in done.err
    assert "liar" not in [row["name"] for row in world.rows("hosts", "list")]


def test_states_of_hosts_and_slots_follow_the_verbs(
    world: World, registered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    assert world.rows("hosts", "drain", "gpu-01")[0]["state"] == "drained"
    assert world.rows("hosts", "enable", "gpu-01")[0]["state"] == "ready"
    assert world("hosts", "disable", "gpu-01", "--slot", "1").code == 0
    assert world("hosts", "disable", "gpu-01", "--slot", "9").code == 1
    assert [row["state"] for row in world.rows("slots", "list")] == ["free", "disabled", "free", "free"]
    assert world("hosts", "enable", "gpu-01", "--slot", "1").code == 0
    assert world.rows("hosts", "disable", "gpu-01", "-y")[0]["state"] == "disabled"
    assert world("hosts", "drain", "gpu-01").code == 1
    assert world.rows("hosts", "enable", "gpu-01")[0]["state"] == "ready"


def test_a_pool_has_options_and_is_removed_last(world: World, registered: tuple[NamespaceHost, NamespaceHost]) -> None:
    defaults = world.file("defaults.yaml", "max_restarts: 1\n")
    world.rows("pools", "set", "lab", "--fit", "worst", "--heterogeneous", "on", "--defaults", defaults)
    pool = world.rows("pools", "describe", "lab")
    assert (pool["fit"], pool["heterogeneous"], pool["defaults"]) == ("worst", True, {"max_restarts": 1})
    assert pool["hosts"] == ["gpu-01", "gpu-02"]
    path = world.file("pooled.yaml", "entrypoint: python train.py\nresources: {pool: lab}\n")
    assert world.rows("configs", "render", path)["max_restarts"] == 1
    bad = world.file("bad_defaults.yaml", "resources: {slots_per_trial: -1}\n")
    assert world("pools", "set", "lab", "--defaults", bad).code == 1
    refused = world("pools", "remove", "lab", "-y")
    assert (refused.code, "gpu-01" in refused.err) == (3, True)


def test_explain_says_now_later_or_never(world: World, registered: tuple[NamespaceHost, NamespaceHost]) -> None:
    def request(slots: int, *, single: bool = False) -> str:
        resources = f"{{pool: lab, slots_per_trial: {slots}, is_single_host: {str(single).lower()}}}"
        return world.file("request.yaml", f"entrypoint: python train.py\nresources: {resources}\n")

    fits = world("explain", request(4), "-o", "json")
    assert (fits.code, fits.json["outlook"], fits.json["hosts"]) == (0, "now", "gpu-01:0-1,gpu-02:0-1")
    world("hosts", "drain", "gpu-02")
    later = world("explain", request(4), "-o", "json")
    assert (later.code, later.json["outlook"]) == (3, "later")
    assert "gpu-02" in later.json["reason"]
    world("hosts", "enable", "gpu-02")
    never = world("explain", request(3, single=True), "-o", "json")
    assert (never.code, never.json["outlook"]) == (1, "never")


def test_explain_refuses_what_this_release_would_not_run(world: World) -> None:
    path = world.file("later.yaml", "entrypoint: a.py\nresources: {devices: [/dev/a:/dev/b]}\n")
    done = world("explain", path)
    assert done.code == 1
    assert "devices" in done.err


@pytest.mark.nightly
def test_a_host_that_is_cut_off_is_found_out_and_comes_back(
    world: World, registered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    registered[1].partition()
    try:
        done = world("hosts", "probe", "-o", "json")
        assert done.code == 1
        states = {row["host"]: (row["state"], row["problem"] is None) for row in done.json}
        assert states == {"gpu-01": ("ready", True), "gpu-02": ("unreachable", False)}
        doctor = world("doctor", "-o", "json")
        assert doctor.code == 1
        wrong = [line for line in doctor.json if not line["ok"] and line["check"] == "host gpu-02"]
        assert "cannot be reached" in wrong[0]["message"]
        assert world("hosts", "enable", "gpu-02").code == 1
    finally:
        registered[1].heal()
    assert world.rows("hosts", "enable", "gpu-02")[0]["state"] == "ready"
    assert world.rows("hosts", "probe", "gpu-02")[0]["problem"] is None


@pytest.mark.nightly
def test_a_host_that_another_store_uses_names_that_store(
    world: World, registered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    assert [row["other_stores"] for row in world.rows("hosts", "list")] == [[], []]
    assert "other_stores" not in world("hosts", "list").out
    grant = "Layout('.dtrain').ensure().record_tokens('0123456789abcdef', 3, [0])"
    code = f"from airflow_provider_dtrain.supervisor.files.layout import Layout; {grant}"
    done = registered[1].exec(["env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert world.rows("hosts", "probe", "gpu-02")[0]["other_stores"] == ["0123456789abcdef"]
    rows = {row["name"]: row["other_stores"] for row in world.rows("hosts", "list")}
    assert rows == {"gpu-01": [], "gpu-02": ["0123456789abcdef"]}
    assert "0123456789abcdef" in world("hosts", "list").out


@pytest.mark.nightly
def test_a_host_that_nobody_uses_is_removed(world: World, registered: tuple[NamespaceHost, NamespaceHost]) -> None:
    assert world("hosts", "remove", "gpu-02").code == 2
    assert world("hosts", "remove", "gpu-02", "-y", "--dry-run").code == 0
    assert world.rows("hosts", "remove", "gpu-02", "-y") == {"removed": "gpu-02", "ended": []}
    assert [row["name"] for row in world.rows("hosts", "list")] == ["gpu-01"]


@pytest.mark.nightly
def test_files_of_a_host_that_does_not_answer_stay_and_so_does_the_host(
    world: World, registered: tuple[NamespaceHost, NamespaceHost]
) -> None:
    home = registered[1].home / ".dtrain"
    before = sorted(home.rglob("*"))
    registered[1].partition()
    try:
        done = world("hosts", "remove", "gpu-02", "--purge", "-y")
    finally:
        registered[1].heal()
    assert done.code == 1
    assert "Nothing was removed from host 'gpu-02', and it stays registered: " in done.err
    assert "airflow dtrain hosts remove gpu-02" in done.err
    assert sorted(home.rglob("*")) == before
    assert "gpu-02" in [row["name"] for row in world.rows("hosts", "list")]
    removed = world.rows("hosts", "remove", "gpu-02", "--purge", "-y")
    assert (removed["removed"], removed["bytes"] > 100_000) == ("gpu-02", True)
    assert not home.exists()
    assert "gpu-02" not in [row["name"] for row in world.rows("hosts", "list")]
