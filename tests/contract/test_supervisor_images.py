"""Downloads of images by podman, from a registry of these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import containers
from tests.support.containers import need_podman
from tests.support.registry import Registry, registry, settings
from tests.support.supervisor_host import Channel, Host, Refusal, until

pytestmark = pytest.mark.nightly
PASSWORD = "s3cret-text"  # noqa: S105 - of a registry of these tests
NAME = "team/image:1"


@pytest.fixture
def podman(host: Host, tmp_path: Path) -> Host:
    """A host with podman, whose downloads are kept below ``tmp_path`` until they are complete."""
    need_podman()
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    host.env |= {**containers.settings(), **settings(tmp_path), "TMPDIR": str(downloads)}
    return host


@pytest.fixture(params=["basic", "token"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    with registry(tmp_path, f"me:{PASSWORD}", request.param) as found:
        add(found, os.urandom(1 << 20))
        yield found
        subprocess.run(["podman", "rmi", "--force", *ids_of(found)], capture_output=True, timeout=60)


def ids_of(server: Registry) -> set[str]:
    argv = ["podman", "images", "--quiet", "--no-trunc", "--filter", f"label=registry={server.address}"]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout.split()
    return {one.removeprefix("sha256:") for one in found}


def add(server: Registry, content: bytes) -> str:
    return server.add(NAME, {"bin/program": content}, Labels={"registry": server.address})


def images(server: Registry) -> list[str]:
    argv = ["podman", "images", "--format", "{{.Repository}}:{{.Tag}}"]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout.split()
    return [name for name in found if name.startswith(server.address)]


def request(server: Registry, password: str = PASSWORD, **more: Any) -> dict[str, Any]:
    login = {"server": server.address, "username": "me", "password": password}
    found = {"runtime": "podman", "image": f"{server.address}/{NAME}", "limit_s": 60, "login": login}
    return {**found, **more}


def pulls(server: Registry) -> list[int]:
    """Return the processes that download from a registry."""
    image = server.address.encode()
    lines = {int(entry.name): read(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return [pid for pid, line in lines.items() if b"podman\0pull" in line and image in line]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def begin(channel: Channel, server: Registry, **more: Any) -> str:
    """Request an image of a registry that stops in the middle of it."""
    server.hangs.set()
    key = channel.post("image", **request(server, **more))
    until(lambda: any("/blobs/" in path for path in server.requests), "the download")
    return key


def left_by(host: Host) -> list[Path]:
    return list(Path(host.env["TMPDIR"]).iterdir())


@pytest.mark.each_change
def test_credentials_of_a_registry_are_in_no_argument_and_no_file(
    podman: Host, server: Registry, tmp_path: Path
) -> None:
    channel = podman.channel()
    key = begin(channel, server)
    encoded = [PASSWORD.encode(), b"bWU6czNjcmV0LXRleHQ="]
    mine = [Path(f"/proc/{pid}/{name}") for pid in pulls(server) for name in ("cmdline", "environ")]
    assert mine
    places = [tmp_path, Path("/run/containers"), Path("/dev/shm")]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    everything = [*mine, *files, *Path("/proc").glob("[0-9]*/cmdline")]
    assert [path for path in everything if any(secret in read(path) for secret in encoded)] == []
    server.hangs.clear()
    answer = channel.answer(key)
    assert answer["digest"].startswith(f"{server.address}/team/image@sha256:")
    assert len(images(server)) == 1
    assert left_by(podman) == []
    # Without a request of the registry from now on, unless it is demanded.
    server.requests.clear()
    assert channel.call("image", **request(server))["image"] == answer["image"]
    assert server.requests == []
    newer = add(server, b"newer")
    assert channel.call("image", **request(server, always=True))["digest"].endswith(newer)


def test_a_wrong_password_is_named_and_not_shown(podman: Host, server: Registry) -> None:
    server.refusal = "no account for <authorization>"
    with pytest.raises(Refusal, match="unauthorized|invalid username/password") as caught:
        podman.channel().call("image", **request(server, password="wr0ng-text"))  # noqa: S106 - of this test
    assert caught.value.code == "image"
    assert "wr0ng-text" not in str(caught.value)
    assert images(server) == []


def test_credentials_go_to_their_own_registry_only(podman: Host, server: Registry) -> None:
    login = {"server": "registry.example.org", "username": "me", "password": PASSWORD}
    with pytest.raises(Refusal, match="unauthorized|invalid username/password"):
        podman.channel().call("image", **request(server, login=login))


def test_an_image_that_the_registry_does_not_have_is_named(podman: Host, server: Registry) -> None:
    image = f"{server.address}/team/other:1"
    with pytest.raises(Refusal, match=f"podman cannot provide image '{image}'.*manifest unknown") as caught:
        podman.channel().call("image", **request(server, image=image))
    assert caught.value.code == "image"


@pytest.mark.parametrize("server", ["basic"], indirect=True)
def test_a_registry_that_hangs_ends_the_download_after_its_time(podman: Host, server: Registry) -> None:
    channel = podman.channel()
    with pytest.raises(Refusal, match=r"'podman pull --quiet' did not answer within 3 s") as caught:
        channel.answer(begin(channel, server, limit_s=3))
    assert caught.value.code == "image"
    assert (images(server), pulls(server), left_by(podman)) == ([], [], [])
    server.hangs.clear()
    assert channel.call("image", **request(server))["digest"]


@pytest.mark.parametrize("server", ["basic"], indirect=True)
@pytest.mark.parametrize("victim", [pytest.param("podman", marks=pytest.mark.each_change), "channel"])
def test_a_download_that_is_killed_leaves_no_image(podman: Host, server: Registry, victim: str) -> None:
    channel = podman.channel()
    key = begin(channel, server)
    if victim == "podman":
        for pid in pulls(server):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(Refusal, match="podman cannot provide image"):
            channel.answer(key)
        assert left_by(podman) == []
    else:
        os.kill(channel.process.pid, signal.SIGKILL)
        until(lambda: not pulls(server), "the end of the download")
    assert images(server) == []
    server.hangs.clear()
    assert podman.channel().call("image", **request(server))["digest"]
    assert len(images(server)) == 1


def collected(channel: Channel, *names: str, dry_run: bool = False) -> dict[str, int]:
    """Return what a collection removes, or could remove."""
    found = channel.call("collect", older_than_s=0, runs=[], archives=list(names), dry_run=dry_run)["archives"]
    return {name: size for name, size in found.items() if name.startswith(("images/", "containers/", "downloads/"))}


@pytest.mark.parametrize("server", ["basic"], indirect=True)
def test_an_image_that_a_launch_has_downloaded_is_collected_once_nothing_uses_it(
    podman: Host, server: Registry
) -> None:
    channel = podman.channel()
    answer = channel.call("image", **request(server))
    ((name, size),) = collected(channel, dry_run=True).items()
    assert size > 1 << 20
    # One that was here before its first use.
    channel.call("image", runtime="podman", image=containers.WITHOUT_PYTHON, limit_s=5)
    here = next(one for one in collected(channel, dry_run=True) if one != name)
    # A newer one, while a container uses the older one.
    argv = ["podman", "create", "--network", "none", answer["image"], "/bin/program"]
    used = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=podman.env).stdout.strip()
    add(server, os.urandom(1 << 20))
    newer = channel.call("image", **request(server, always=True))
    assert newer["image"] != answer["image"]
    assert ids_of(server) == {answer["image"], newer["image"]}
    assert collected(channel, name) == {}
    assert ids_of(server) == {answer["image"]}
    subprocess.run(["podman", "rm", used], check=True, capture_output=True, timeout=60)
    assert set(collected(channel, name, here)) == {here, name}
    assert ids_of(server) == set()
    argv = ["podman", "image", "exists", containers.WITHOUT_PYTHON]
    assert subprocess.run(argv, timeout=60).returncode == 0


@pytest.mark.parametrize("server", ["basic"], indirect=True)
def test_older_images_of_a_name_are_removed_and_one_that_a_user_has_named_is_not(
    podman: Host, server: Registry
) -> None:
    channel = podman.channel()
    first = channel.call("image", **request(server))["image"]
    add(server, b"second")
    second = channel.call("image", **request(server, always=True))["image"]
    # A launch that has just asked for it may start a container of it.
    assert ids_of(server) == {first, second}
    own = f"localhost/own-{os.getpid()}:1"
    subprocess.run(["podman", "tag", second, own], check=True, timeout=60)
    add(server, b"third")
    third = channel.call("image", **request(server, always=True))["image"]
    assert ids_of(server) == {second, third}
    assert len(collected(channel, *collected(channel, dry_run=True))) == 1
    assert ids_of(server) == {second}


@pytest.mark.parametrize("server", ["basic"], indirect=True)
def test_containers_without_a_folder_and_downloads_of_a_dead_host_are_collected(podman: Host, server: Registry) -> None:
    channel = podman.channel()
    image = channel.call("image", **request(server))["image"]
    other = podman.run_dir("t9.9.9")
    kept = podman.run_dir("t1.1.7")
    kept.mkdir(parents=True)
    for folder in (other, kept):
        argv = ["podman", "create", "--network", "none", "--label", f"dtrain.run={folder}", image, "/bin/program"]
        subprocess.run(argv, check=True, capture_output=True, timeout=60, env=podman.env)
    for age_s in (60, 10 * 86400):
        download = Path(podman.env["TMPDIR"], f"dtrain-pull-{age_s}")
        download.mkdir()
        os.utime(download, (0, time.time() - age_s))
    found = collected(channel, dry_run=True)
    assert sorted(name.partition("/")[0] for name in found) == ["containers", "downloads", "images"]
    removed = collected(channel, *found)
    assert sorted(name.partition("/")[0] for name in removed) == ["containers", "downloads"]
    assert [path.name for path in left_by(podman)] == ["dtrain-pull-60"]
    left = ["podman", "ps", "--all", "--quiet", "--filter", f"label=dtrain.run={kept}"]
    (one,) = subprocess.run(left, capture_output=True, text=True, timeout=60).stdout.split()
    subprocess.run(["podman", "rm", one], check=True, capture_output=True, timeout=60)
    assert list(collected(channel, *found)) == [name for name in found if name.startswith("images/")]


def test_fields_of_a_login_are_checked_without_showing_them(host: Host) -> None:
    login = {"server": "r", "username": "me", "password": "s3cret\ntext"}
    with pytest.raises(Refusal, match="login: must have server, username and password") as caught:
        host.channel().call("image", image="a/b:1", limit_s=5, login=login)
    assert "s3cret" not in str(caught.value)
