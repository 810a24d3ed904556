"""Environments on a host: built once from locked files, complete or absent, and read-only."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.channel.answers import check_answer
from airflow_provider_dtrain.supervisor.environments.folder import EnvironmentFolder, Use
from airflow_provider_dtrain.supervisor.environments.garbage import make_room
from airflow_provider_dtrain.supervisor.files.layout import Layout
from testbed.wheels import index_server, locked, make_backend, make_source, make_wheel, uv_program
from tests.support.environment_hosts import Asking
from tests.support.supervisor_host import (
    SLEEP,
    Host,
    Refusal,
    is_alive,
    make_plan,
    start,
    until,
)

pytest_plugins = ["tests.support.environment_hosts"]


@pytest.fixture
def host(uv_host: Host) -> Host:
    return uv_host


def damage(python: str) -> None:
    """Change all installed files, so that each sample contains one of them."""
    for path in (Path(python).parent.parent / "lib").rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
            path.write_text("changed")


def imported(python: str, module: str) -> str:
    code = f"import {module}; print({module}.VERSION)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def left(host: Host) -> list[str]:
    """Return what is below the folder of environments, without locks and states."""
    folder = host.remote_dir / "environments"
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith((".lock", ".build")))


@pytest.mark.parametrize(
    "name", ["host", pytest.param("bare", marks=pytest.mark.nightly), pytest.param("old", marks=pytest.mark.nightly)]
)
def test_an_environment_is_built_from_an_index_and_ready_at_once_afterwards(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    host = request.getfixturevalue(name)
    wheels = tmp_path / "index"
    lock = locked(make_wheel(wheels, "demo-one"), make_wheel(wheels, "demo-two", "2.1"))
    with index_server(wheels) as server:
        asking = Asking(host.channel(), lock, index={"urls": [server.url]})
        absent = asking.state()
        assert absent["state"] == "absent"
        assert absent["facts"]["python"] == (platform.python_version() if name != "old" else host_version(host))
        found = asking.run()
    assert found["state"] == "ready", found.get("lines", found)
    assert found["packages"] == ["demo-one==1.0", "demo-two==2.1"]
    assert (imported(found["python"], "demo_one"), imported(found["python"], "demo_two")) == ("1.0", "2.1")
    assert left(host) == [found["digest"]]
    begun = time.monotonic()
    assert asking.state()["state"] == "ready"
    assert time.monotonic() - begun < 0.5, "without an interpreter that starts"


def host_version(host: Host) -> str:
    done = subprocess.run([host.python, "-c", "import platform; print(platform.python_version())"], capture_output=True)
    return done.stdout.decode().strip()


@pytest.mark.nightly
def test_another_lock_file_or_option_is_another_environment(host: Host) -> None:
    channel = host.channel()
    one = Asking(channel, "a==1").state()["digest"]
    assert one == Asking(channel, "a==1").state()["digest"]
    others = [
        Asking(channel, "a==2"),
        Asking(channel, "a==1", allow_builds=True),
        Asking(channel, "a==1", system_site_packages=True),
        Asking(channel, "a==1", wheels="wheels"),
        Asking(channel, "a==1", python="/usr/bin/python3"),
    ]
    assert len({one, *(asking.state()["digest"] for asking in others)}) == 6


@pytest.mark.nightly
def test_the_environment_is_read_only_and_a_damaged_one_is_built_again(host: Host, tmp_path: Path) -> None:
    lock = locked(make_wheel(tmp_path / "wheels", "demo"))
    asking = Asking(host.channel(), lock, wheels=str(tmp_path / "wheels"))
    found = asking.run()
    folder = Path(found["python"]).parent.parent
    modes = [path.lstat().st_mode for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    assert [oct(mode) for mode in modes if stat.S_IMODE(mode) & 0o222 and stat.S_ISREG(mode)] in ([], [oct(0o100600)])
    damage(found["python"])
    again = asking.state()
    assert again["state"] == "absent"
    assert "has another" in again["damage"]
    found = asking.run("build-2")
    assert found["state"] == "ready", found.get("lines", found)
    assert imported(found["python"], "demo") == "1.0"


@pytest.mark.nightly
def test_a_damaged_environment_that_a_run_uses_is_not_replaced(host: Host, tmp_path: Path) -> None:
    lock = locked(make_wheel(tmp_path / "wheels", "demo"))
    channel = host.channel()
    asking = Asking(channel, lock, wheels=str(tmp_path / "wheels"))
    found = asking.run()
    assert found["state"] == "ready", found
    start(channel, make_plan("t1.1.7", *SLEEP, environment=found["digest"], python=found["python"]))
    damage(found["python"])
    with pytest.raises(Refusal) as refused:
        asking.state()
    assert refused.value.code == "in_use"
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    until(lambda: not host.processes("t1.1.7"), "the end of the run")
    assert until_state(asking, "absent")["damage"]
    with pytest.raises(Refusal) as missing:
        channel.call("prepare", plan=make_plan("t1.2.8", *SLEEP, environment="0" * 64), secrets={})
    assert missing.value.code == "need_environment"


@pytest.mark.nightly
def test_environments_are_removed_by_age_and_size_and_never_while_a_run_uses_them(host: Host, tmp_path: Path) -> None:
    channel = host.channel()
    found = []
    for number in range(3):
        lock = locked(make_wheel(tmp_path / "wheels", "demo", f"{number}.0"))
        found.append(Asking(channel, lock, wheels=str(tmp_path / "wheels")).run())
        past = time.time() - 86400 * (3 - number)
        os.utime(host.remote_dir / "environments" / f"{found[-1]['digest']}.lock", (past, past))
    names = [f"environments/{one['digest']}" for one in found]
    start(channel, make_plan("t1.1.7", *SLEEP, environment=found[0]["digest"], python=found[0]["python"]))
    dry = channel.call("collect", older_than_s=1.5 * 86400, dry_run=True)["archives"]
    assert {name for name in dry if name.startswith("environments/")} == {names[1]}
    assert dry[names[1]] > 1000
    assert left(host) == sorted(one["digest"] for one in found)
    gone = channel.call("collect", older_than_s=1.5 * 86400, archives=names, runs=[])["archives"]
    assert set(gone) == {names[1]}
    layout = Layout(str(host.remote_dir))
    new = EnvironmentFolder(layout, "0" * 64)
    assert make_room(layout, new, limit_bytes=1 << 40) == []
    assert make_room(layout, new, limit_bytes=1) == [found[2]["digest"]], "the one that the run uses stays"
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")


def test_environments_are_listed_with_the_runs_that_use_them_and_removed_by_name(host: Host, tmp_path: Path) -> None:
    channel = host.channel()
    wheels = tmp_path / "wheels"
    lock = locked(make_wheel(wheels, "demo-one"), make_wheel(wheels, "demo-two"))
    begun = time.time()
    found = Asking(channel, lock, wheels=str(wheels)).run()
    start(channel, make_plan("t1.1.7", *SLEEP, environment=found["digest"], python=found["python"]))

    def listed(**more: Any) -> dict[str, Any]:
        [one] = channel.call("environments", **more)["environments"]
        check_answer("environments", {"environments": [one]})
        assert isinstance(one, dict)
        return one

    one = listed()
    assert (one["digest"], one["is_complete"], one["use"], one["runs"]) == (found["digest"], True, "run", ["t1.1.7"])
    assert (one["package_count"], one["packages"]) == (2, None)
    assert one["lock"] == hashlib.sha256(lock.encode()).hexdigest()
    assert begun <= one["built_at"] <= one["used_at"] + 1 <= time.time() + 1
    assert listed(digest=found["digest"])["packages"] == ["demo-one==1.0", "demo-two==1.0"]
    assert channel.call("environments", digest="0" * 64)["environments"] == []
    refused = channel.call("remove_environment", digest=found["digest"])
    assert (refused["use"], refused["runs"]) == ("run", ["t1.1.7"])
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    until(lambda: listed()["use"] == "free", "the end of the run")
    dry = channel.call("remove_environment", digest=found["digest"], dry_run=True)
    assert (dry["use"], left(host)) == ("free", [found["digest"]])
    gone = channel.call("remove_environment", digest=found["digest"])
    check_answer("remove_environment", gone)
    assert (gone["use"], gone["size"], left(host)) == ("free", one["bytes"], [])
    assert channel.call("remove_environment", digest=found["digest"])["use"] == "absent"
    with pytest.raises(Refusal):
        channel.call("remove_environment", digest="../../etc")


def test_a_run_gets_its_environment_while_other_processes_ask_for_its_use(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    folder = EnvironmentFolder(layout, "a" * 64)
    os.close(folder.seize() or -1)
    done = threading.Event()
    answers = []

    def ask() -> None:
        while not done.is_set():
            answers.append(folder.use())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        until(lambda: answers, "an answer")
        for _ in range(100):
            lock = folder.share()
            assert lock is not None
            os.close(lock)
        for _ in range(10):
            lock = folder.seize()
            assert lock is not None
            os.close(lock)
    finally:
        done.set()
        for thread in threads:
            thread.join(10)
    lock = folder.share()
    assert (folder.use(), folder.remove()) == (Use.RUN, Use.RUN)
    os.close(lock or -1)
    lock = folder.seize()
    assert (folder.use(), folder.share(), folder.remove()) == (Use.CHANGE, None, Use.CHANGE)
    os.close(lock or -1)
    assert (folder.use(), folder.remove(), folder.remove()) == (Use.FREE, Use.FREE, Use.ABSENT)


def test_questions_about_environments_create_nothing(host: Host) -> None:
    channel = host.channel()
    assert Asking(channel, "a==1").state()["state"] == "absent"
    channel.call("collect", older_than_s=0, dry_run=True)
    with pytest.raises(Refusal):
        channel.call("prepare", plan=make_plan("t1.2.8", *SLEEP, environment="0" * 64), secrets={})
    assert EnvironmentFolder(Layout(str(host.remote_dir)), "0" * 64).remove() is Use.ABSENT
    assert not (host.remote_dir / "environments").exists()


def until_state(asking: Asking, state: str) -> dict[str, Any]:
    """Return the answer once an environment is in a state."""

    def answer() -> dict[str, Any] | None:
        try:
            found = asking.state()
        except Refusal:
            return None
        return found if found["state"] == state else None

    found: dict[str, Any] = until(answer, state)
    return found


@pytest.mark.nightly
def test_eight_gangs_at_once_build_once(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "index"
    lock = locked(make_wheel(wheels, "demo"))
    with index_server(wheels) as server:
        asking = [Asking(host.channel(), lock, index={"urls": [server.url]}) for _ in range(8)]
        builds = [one.build(f"build-{number}") for number, one in enumerate(asking)]
        keys = [
            one.channel.post("environment", environment=one.environment, build=build, waits_for=build["id"])
            for one, build in zip(asking, builds, strict=True)
        ]
        answers = [one.channel.answer(key) for one, key in zip(asking, keys, strict=True)]
        assert {answer["state"] for answer in answers} <= {"building", "ready"}
        ends = [one.finish(build["id"]) for one, build in zip(asking, builds, strict=True)]
        assert [end["state"] for end in ends] == ["ready"] * 8
        assert server.downloads() == 1


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["redirect", "link"])
def test_credentials_are_for_the_server_of_the_index_alone(host: Host, tmp_path: Path, way: str) -> None:
    wheels = tmp_path / "index"
    path = make_wheel(wheels, "demo")
    with index_server(wheels) as other, index_server(wheels, login="me:s3cret") as server:
        place = other.url.removesuffix("/simple")
        server.files_at = place if way == "link" else ""
        server.redirects[f"/files/{path.name}"] = f"{place}/files/{path.name}"
        index = {"urls": [server.url, other.url], "login": "me", "password": "s3cret"}
        asking = Asking(host.channel(), locked(path), index=index)
        assert asking.run()["state"] == "ready"
        assert {given for _, given in other.requests} == {None}
        assert other.downloads() == 1
    kept = b"".join(file.read_bytes() for file in host.root.rglob("*") if file.is_file())
    assert b"s3cret" not in kept


def test_wrong_credentials_are_named_without_their_text(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "index"
    with index_server(wheels, login="me:s3cret") as server:
        lock = locked(make_wheel(wheels, "demo"))
        url = server.url.replace("//", "//me:wr0ng@")
        found = Asking(host.channel(), lock, index={"urls": [url]}).run()
    assert (found["state"], found["code"]) == ("failed", "index")
    assert "answers with status 401" in found["message"]
    assert "wr0ng" not in str(found)
    assert left(host) == []


def test_wheels_that_are_sent_with_the_code_need_no_index_and_no_hashes(host: Host, tmp_path: Path) -> None:
    path = make_wheel(tmp_path / "code" / "wheels", "demo")
    archive = shutil.make_archive(str(tmp_path / "code"), "gztar", tmp_path / "code")
    content = Path(archive).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert host.command("receive", "payloads", digest, stdin=content) == (0, b"ok\n")
    asking = Asking(host.channel(), "demo==1.0", wheels="wheels", payload=digest)
    found = asking.run()
    assert found["state"] == "ready", found.get("lines", found)
    assert imported(found["python"], path.name.partition("-")[0]) == "1.0"


def for_another_platform(folder: Path) -> str:
    return locked(make_wheel(folder, "demo", tag="cp311-cp311-macosx_11_0_arm64"))


def with_a_build(folder: Path) -> str:
    return locked(make_source(folder, "demo", on_build="raise SystemExit('it was built')"))


def absent_package(folder: Path) -> str:
    return "demo==3.0 --hash=sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (for_another_platform, "that the lock file allows fits cp"),
        (with_a_build, "demo 1.0 has no wheel, and its build would run its code. Set environment.allow_builds"),
        (absent_package, "has no file of demo 3.0"),
    ],
    ids=["platform", "build", "absent"],
)
def test_a_package_that_cannot_be_installed_fails_by_its_name_and_leaves_nothing(
    host: Host, tmp_path: Path, make: Any, message: str
) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "demo", "2.0")
    lock = make(wheels)
    with index_server(wheels) as server:
        found = Asking(host.channel(), lock, index={"urls": [server.url]}).run()
    assert (found["state"], found["code"], found["package"].partition(" ")[0]) == ("failed", "package", "demo")
    assert message in found["message"]
    assert left(host) == []


@pytest.mark.nightly
def test_a_corrupted_wheel_is_not_installed(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    path = make_wheel(wheels, "demo")
    lock = locked(path)
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    found = Asking(host.channel(), lock, wheels=str(wheels)).run()
    assert (found["state"], found["code"], found["package"]) == ("failed", "package", "demo 1.0")
    assert "has none of the hashes of the lock file. It is damaged" in found["message"]
    with index_server(wheels) as server:
        server.lists = {path.name: lock.strip().rpartition("--hash=")[2]}
        found = Asking(host.channel(), lock, index={"urls": [server.url]}).run("build-2")
    assert (found["code"], server.downloads()) == ("package", 1)
    assert f"127.0.0.1:{server.port}/files/{path.name} has none of the hashes" in found["message"]
    assert left(host) == []


@pytest.mark.nightly
def test_a_corrupted_wheel_with_the_hash_of_the_lock_file_is_named_and_leaves_nothing(
    host: Host, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    path = make_wheel(wheels, "demo")
    path.write_bytes(path.read_bytes()[:-100])
    found = Asking(host.channel(), locked(path), wheels=str(wheels)).run()
    assert (found["state"], found["code"]) == ("failed", "install"), found
    assert any("demo" in line for line in found["lines"]), found["lines"]
    assert left(host) == []


def test_an_index_that_hangs_in_the_middle_of_a_file_fails_after_its_limit(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "index"
    lock = locked(make_wheel(wheels, "demo", files={"noise.txt": os.urandom(200_000).hex()}))
    with index_server(wheels) as server:
        server.sends_most = 50_000
        found = Asking(host.channel(), lock, index={"urls": [server.url]}, stall_s=0.5).run()
    assert (found["state"], found["code"], found["package"]) == ("failed", "index", "demo 1.0"), found
    assert "did not answer within 0.5 s" in found["message"]
    assert left(host) == []


@pytest.mark.nightly
def test_an_index_that_hangs_fails_with_its_name_after_its_limit(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "index"
    lock = locked(make_wheel(wheels, "demo"))
    with index_server(wheels, stalls=True) as server:
        found = Asking(host.channel(), lock, index={"urls": [server.url]}, stall_s=0.3).run()
        assert (found["state"], found["code"]) == ("failed", "index")
        assert f"The index {server.url} did not answer within 0.3 s." in found["message"]
        found = Asking(host.channel(), lock, index={"urls": [server.url]}, timeout_s=1).run("build-2")
        assert (found["state"], found["code"]) == ("failed", "timeout")
    assert left(host) == []


@pytest.mark.nightly
def test_a_build_that_fails_shows_its_last_lines(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    lock = locked(make_source(wheels, "demo", on_build="raise SystemExit('no compiler here')"))
    found = Asking(host.channel(), lock, wheels=str(wheels), allow_builds=True).run()
    assert (found["state"], found["code"]) == ("failed", "install"), found
    assert "add their build backend, such as setuptools, to the lock file" in found["lines"][-1], found["lines"]
    lock += locked(make_backend(wheels))
    found = Asking(host.channel(), lock, wheels=str(wheels), allow_builds=True).run()
    assert (found["state"], found["code"], found["package"]) == ("failed", "install", "demo"), found
    assert any("no compiler here" in line for line in found["lines"]), found["lines"]
    assert left(host) == []


@pytest.mark.parametrize("name", ["host", pytest.param("bare", marks=pytest.mark.nightly)])
def test_a_package_is_built_without_index_and_without_files_of_the_account(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    host = request.getfixturevalue(name)
    wheels = tmp_path / "wheels"
    record = f"import os; open({str(tmp_path / 'variables')!r}, 'w').write(str(dict(os.environ)))"
    lock = locked(make_source(wheels, "demo", on_build=record), make_backend(wheels))
    with index_server(wheels, login="me:s3cret") as server:
        index = {"urls": [server.url], "login": "me", "password": "s3cret"}
        found = Asking(host.channel(), lock, index=index, allow_builds=True).run()
    assert found["state"] == "ready", found.get("lines", found)
    assert imported(found["python"], "demo") == "built"
    variables = (tmp_path / "variables").read_text()
    assert "'PIP_NO_INDEX': '1'" in variables
    assert "PIP_INDEX_URL" not in variables
    assert "s3cret" not in variables
    assert f"'HOME': '{host.env['HOME']}'" not in variables


@pytest.mark.nightly
def test_a_disk_that_is_full_in_the_middle_of_a_build_is_named_and_left_as_it_was(host: Host, tmp_path: Path) -> None:
    folder = host.remote_dir / "environments"
    folder.mkdir(parents=True)
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=6m none {folder}"):
        pytest.skip("mounting a small tmpfs needs root")
    try:
        wheels = tmp_path / "wheels"
        noise = os.urandom(2 << 20).hex()
        lock = locked(*(make_wheel(wheels, f"demo-{n}", files={f"noise_{n}.txt": noise}) for n in range(4)))
        found = Asking(host.channel(), lock, wheels=str(wheels)).run()
        assert (found["state"], found["code"]) == ("failed", "disk_full"), found
        lock = locked(make_wheel(wheels, "large", files={"large.txt": noise}))
        found = Asking(host.channel(), lock, wheels=str(wheels)).run("build-2")
        assert (found["state"], found["code"]) == ("failed", "disk_full"), "while the file is unpacked"
        assert left(host) == []
        assert shutil.disk_usage(folder).used < 1 << 20
    finally:
        os.system(f"umount -l {folder}")


@pytest.mark.nightly
def test_a_killed_build_leaves_no_complete_environment_and_the_next_one_succeeds(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "index"
    lock = locked(make_wheel(wheels, "demo"))
    with index_server(wheels, stalls=True) as server:
        asking = Asking(host.channel(), lock, index={"urls": [server.url]})
        assert asking.start()["state"] == "building"
        until(lambda: server.requests, "a request to the index")
        digest = asking.state()["digest"]
        pid = asking_pid(host, digest)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid), "the end of the build")
        found = asking.finish()
        assert (found["state"], found["code"]) == ("failed", "killed")
    assert [name for name in left(host) if not name.endswith(".work")] == []
    with index_server(wheels) as server:
        again = Asking(host.channel(), lock, index={"urls": [server.url]})
        assert again.run("build-2")["state"] == "ready"
    assert left(host) == [digest]


@pytest.mark.parametrize("name", ["host", pytest.param("bare", marks=pytest.mark.nightly)])
def test_what_builds_a_package_ends_with_a_killed_build(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    host = request.getfixturevalue(name)
    wheels, pids = tmp_path / "wheels", tmp_path / "pids"
    code = f"import os, time; print(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True)\n"
    code += f"if len(open({str(pids)!r}).readlines()) == 1: time.sleep(900)"
    lock = locked(make_source(wheels, "demo", on_build=code), make_backend(wheels))
    asking = Asking(host.channel(), lock, wheels=str(wheels), allow_builds=True)
    assert asking.start()["state"] == "building"
    until(lambda: pids.exists() and pids.read_text().strip(), "the build of the package")
    digest = asking.state()["digest"]
    backend = int(pids.read_text())
    os.kill(asking_pid(host, digest), signal.SIGKILL)
    until(lambda: not is_alive(backend), "the end of the process that builds the package", timeout_s=10)
    found = asking.finish()
    assert (found["state"], found["code"]) == ("failed", "killed")
    found = asking.run("build-2")
    assert found["state"] == "ready", found.get("lines", found)
    assert left(host) == [digest]


@pytest.mark.nightly
def test_what_builds_a_package_ends_with_the_time_of_its_build(host: Host, tmp_path: Path) -> None:
    wheels, pids = tmp_path / "wheels", tmp_path / "pids"
    code = f"import os, time; print(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True); time.sleep(900)"
    lock = locked(make_source(wheels, "demo", on_build=code), make_backend(wheels))
    found = Asking(host.channel(), lock, wheels=str(wheels), allow_builds=True, timeout_s=6).run()
    assert (found["state"], found["code"]) == ("failed", "timeout"), found
    assert "pip install did not end within the time-out of the build" in found["message"]
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    assert left(host) == []


def asking_pid(host: Host, digest: str) -> int:
    import json

    state = json.loads((host.remote_dir / "environments" / f"{digest}.build").read_text())
    return int(state["process"]["pid"])


@pytest.mark.nightly
def test_the_packages_of_a_venv_are_found_behind_those_of_the_environment(host: Host, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    site = next(venv.rglob("site-packages"))
    (site / "of_venv.py").write_text("VERSION = 'venv'\n")
    (site / "demo.py").write_text("VERSION = 'venv'\n")
    (site / "more.pth").write_text(f"{tmp_path}/more\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "linked.py").write_text("VERSION = 'linked'\n")
    lock = locked(make_wheel(tmp_path / "wheels", "demo"))
    how = {"python": f"{venv}/bin/python", "wheels": str(tmp_path / "wheels")}
    found = Asking(host.channel(), lock, system_site_packages=True, **how).run()
    assert found["state"] == "ready", found.get("lines", found)
    versions = [imported(found["python"], name) for name in ("demo", "of_venv", "linked")]
    assert versions == ["1.0", "venv", "linked"]
    alone = Asking(host.channel(), lock, **how).run()
    assert "ModuleNotFoundError" in imported(alone["python"], "of_venv")


def test_a_host_without_the_interpreter_says_so(host: Host) -> None:
    with pytest.raises(Refusal) as refused:
        Asking(host.channel(), "a==1", python="python3.99").state()
    assert refused.value.code == "no_python"
    assert "has no interpreter 'python3.99' in its PATH (/usr/bin:/bin)" in refused.value.answer["message"]


@pytest.mark.nightly
@pytest.mark.skipif(uv_program() is None, reason="uv is not installed")
def test_uv_that_was_sent_installs_the_same(bare: Host, tmp_path: Path) -> None:
    place = tmp_path / "uv" / "uv"
    place.parent.mkdir()
    shutil.copy2(str(uv_program()), place)
    with tarfile.open(tmp_path / "uv.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(place, arcname="uv")
    content = (tmp_path / "uv.tar.gz").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert bare.command("receive", "tools", digest, stdin=content) == (0, b"ok\n")
    lock = locked(make_wheel(tmp_path / "wheels", "demo"))
    asking = Asking(bare.channel(), lock, wheels=str(tmp_path / "wheels"))
    asking.changes["uv"] = digest
    found = asking.run()
    assert found["state"] == "ready", found.get("lines", found)
    assert imported(found["python"], "demo") == "1.0"
    state = (bare.remote_dir / "environments" / f"{found['digest']}.build").read_text()
    assert "is complete" in state
