"""Containers of an ordinary account, by rootless podman: its user and files are the same inside and outside."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.core.launch.containers import ContainerHost, container_command
from airflow_provider_dtrain.hosts.payload import library
from testbed import containers
from testbed.programs import unpacked_supervisor
from tests.support.accounts import PYTHON, need_accounts, open_folder
from tests.support.containers import need_podman
from tests.support.registry import registry, settings
from tests.support.supervisor_host import DETACHED, Host, is_alive, make_plan, start, until

pytestmark = pytest.mark.nightly
RUN = "t1.1.7"
#: Account with subordinate user ids.
ACCOUNT = "dtrain-rootless"


@pytest.fixture
def rootless() -> Iterator[Host]:
    """A host of the account, with an image of this machine's files."""
    need_podman()
    need_accounts()
    try:
        account = pwd.getpwnam(ACCOUNT)
    except KeyError:
        pytest.skip(
            f"rootless podman needs an account: apt-get install uidmap; useradd -m -d /var/tmp/{ACCOUNT} {ACCOUNT}"
        )
    with open_folder() as folder:
        host = Host(folder / "host", PYTHON, cgroup=False, uid=account.pw_uid)
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.chown(runtime, account.pw_uid, account.pw_gid)
        own = {"HOME": account.pw_dir, "USER": ACCOUNT, "LOGNAME": ACCOUNT, "XDG_RUNTIME_DIR": str(runtime)}
        host.env = {**containers.settings(), **own}
        archive = folder / "image.tar"
        try:
            if podman(host, "image", "exists", containers.IMAGE).returncode:
                subprocess.run(["podman", "save", "--quiet", "-o", archive, containers.IMAGE], check=True, timeout=120)
                archive.chmod(0o644)
                loaded = podman(host, "load", "--quiet", "-i", str(archive))
                if loaded.returncode:
                    pytest.skip(f"rootless podman does not work here: {loaded.stderr.strip()[-200:]}")
            yield host
        finally:
            try:
                host.clean()
            finally:
                until(lambda: not end_all(account.pw_uid), "the end of the account's processes")


def end_all(uid: int) -> bool:
    """End what podman leaves for the account: its namespace, and cleanups. Return whether there was any process."""
    found = False
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid and is_alive(int(entry.name)):
                os.kill(int(entry.name), signal.SIGKILL)
                found = True
    return found


def podman(host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=120, env=host.env, cwd="/", **host.account
    )  # type: ignore[call-overload, no-any-return]


def contained(host: Host, *argv: str, **changes: Any) -> dict[str, Any]:
    packed = library()
    assert host.command("receive", "libraries", packed.digest, stdin=packed.content)[0] == 0
    uid = host.account["user"]
    facts = ContainerHost(
        runtime="podman",
        image=containers.IMAGE,
        digest="",
        uid=uid,
        gid=uid,
        state_dir=str(host.state_dir),
        program=str(unpacked_supervisor()),
        libraries=str(host.remote_dir / "libraries"),
    )
    config = ExperimentConfig.model_validate(
        {"entrypoint": "python x.py", "environment": {"image": "x"}, "resources": {"shm_size": "16m"}}
    )
    command = container_command(config, facts, run=RUN, library=packed.digest, has_gpus=False)
    container = {"runtime": "podman", "argv": command, "modules": []}
    return make_plan(RUN, *argv, container=container, library=packed.digest, **changes)


def test_user_and_files_are_those_of_the_account(rootless: Host) -> None:
    channel = rootless.channel()
    script = (
        "import os, json; open('made', 'w'); print(json.dumps([os.getuid(), os.getgid(), os.getpid()]), flush=True)"
    )
    start(channel, contained(rootless, "python", "-c", f"{script}; import time; time.sleep(1000)", ranks=2))
    channel.wait(lambda: b"]" in channel.stream(RUN, "rank1.log"))
    uid = rootless.account["user"]
    found = json.loads(channel.stream(RUN, "rank1.log"))
    assert found[:2] == [uid, uid]
    assert found[2] < 50
    made = (rootless.run_dir(RUN) / "work/made").stat()
    assert (made.st_uid, made.st_gid) == (uid, uid)
    answer = channel.call("exec", run=RUN, rank=0, argv=["sh", "-c", "id -u; echo $OF_IMAGE"], limit_s=30)
    assert answer["output"] == f"{uid}\n1\n"
    pids = [one["pid"] for one in channel.wait_event(RUN, "started")["ranks"]]
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids} == {uid}
    channel.call("stop", run=RUN, grace_s=5)
    assert channel.wait_event(RUN, "ended")["reason"] == "stopped"
    assert podman(rootless, "ps", "--all", "--quiet").stdout == ""


def test_nothing_is_left_after_supervisor_and_reaper_are_killed(rootless: Host) -> None:
    channel = rootless.channel()
    start(channel, contained(rootless, *DETACHED))
    channel.wait(lambda: b"ready" in channel.stream(RUN, "rank0.log"))
    rootless.kill_parents(RUN)
    until(lambda: channel.call("fence", run=RUN, token=7, wait_s=30)["clear"], "the proof of the end")
    assert podman(rootless, "ps", "--all", "--quiet").stdout == ""
    assert not rootless.processes(RUN)


def test_an_image_of_a_private_registry_is_downloaded(rootless: Host, tmp_path: Path) -> None:
    conf = rootless.root
    with registry(conf, "me:s3cret-text", "token") as server:
        server.add("team/image:1", {"bin/program": os.urandom(1 << 16)})
        rootless.env |= settings(conf)
        login = {"server": server.address, "username": "me", "password": "s3cret-text"}
        image = f"{server.address}/team/image:1"
        answer = rootless.channel().call("image", runtime="podman", image=image, limit_s=60, login=login)
        assert answer["uid"] == rootless.account["user"]
        assert podman(rootless, "image", "exists", image).returncode == 0
        assert podman(rootless, "image", "rm", image).returncode == 0
