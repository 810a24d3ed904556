"""uv for hosts of another platform, from a package index."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.lock_files.platform import Platform, this_platform
from airflow_provider_dtrain.errors import PayloadError
from airflow_provider_dtrain.hosts import uv_program
from airflow_provider_dtrain.hosts.payload import Payload
from airflow_provider_dtrain.hosts.uv_program import uv_for
from testbed.wheels import index_server, make_wheel

ARM = Platform(python="3.9.2", machine="aarch64", libc="glibc 2.28")
NAME = "uv-0.9.1.data/scripts/uv"


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(uv_program, "_version", lambda: "0.9.1")
    uv_program._fetched.cache_clear()
    yield
    uv_program._fetched.cache_clear()


def program_in(payload: Payload | None) -> tuple[bytes, int]:
    """Return content and mode of the program in an archive."""
    assert payload is not None
    with tarfile.open(fileobj=io.BytesIO(payload.content)) as archive:
        [member] = archive.getmembers()
        assert member.name == "uv"
        file = archive.extractfile(member)
        assert file is not None
        return file.read(), member.mode


def test_the_wheel_of_the_platform_is_fetched_once(tmp_path: Path) -> None:
    for tag, text in (("manylinux_2_17_aarch64", "arm"), ("musllinux_1_1_aarch64", "musl"), ("win_arm64", "win")):
        make_wheel(tmp_path, "uv", "0.9.1", tag=f"py3-none-{tag}", files={NAME: text})
    make_wheel(tmp_path, "uv", "0.9.2", tag="py3-none-manylinux_2_17_aarch64", files={NAME: "newer"})
    with index_server(tmp_path, login="me:s3cret") as server:
        index = {"urls": [server.url], "login": "me", "password": "s3cret"}
        assert program_in(uv_for(ARM, index)) == (b"arm", 0o755)
        assert uv_for(ARM, index) is uv_for(ARM, index)
        assert server.downloads() == 1
        musl = Platform(python="3.12.1", machine="aarch64", libc="musl 1.2")
        assert program_in(uv_for(musl, index))[0] == b"musl"


def test_a_host_of_this_machine_with_another_c_library_does_not_get_the_program_of_this_machine(tmp_path: Path) -> None:
    here = this_platform()
    make_wheel(tmp_path, "uv", "0.9.1", tag=f"py3-none-musllinux_1_1_{here.machine}", files={NAME: "musl"})
    with index_server(tmp_path) as server:
        musl = Platform(python=here.python, machine=here.machine, libc="musl 1.2")
        assert program_in(uv_for(musl, {"urls": [server.url]}))[0] == b"musl"


@pytest.mark.parametrize(
    ("files", "lists", "message"),
    [
        ({"uv/other": ""}, {}, "is not a wheel with the program uv"),
        ({NAME: "arm"}, {"sha256": "0" * 64}, "is damaged: it has another hash than the index says"),
        (None, {}, "has no wheel of it"),
    ],
    ids=["content", "hash", "absent"],
)
def test_a_wheel_that_cannot_be_used_is_refused(
    tmp_path: Path, files: dict[str, str] | None, lists: dict[str, str], message: str
) -> None:
    tag = "py3-none-manylinux_2_17_aarch64" if files is not None else "py3-none-win32"
    path = make_wheel(tmp_path, "uv", "0.9.1", tag=tag, files=files or {})
    with index_server(tmp_path) as server:
        server.lists = {path.name: f"sha256:{lists['sha256']}"} if lists else {}
        with pytest.raises(PayloadError, match=message) as refused:
            uv_for(ARM, {"urls": [server.url]})
    assert str(refused.value).startswith("uv 0.9.1 for Python 3.9.2 on Linux aarch64 with glibc 2.28 cannot be fetched")


def test_an_index_that_cannot_be_reached_is_named_without_its_credentials() -> None:
    with pytest.raises(PayloadError, match=r"The index http://127.0.0.1:9/simple cannot be reached") as refused:
        uv_for(ARM, {"urls": ["http://me:s3cret@127.0.0.1:9/simple"]})
    assert "s3cret" not in str(refused.value)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("machine", "libc", "mark"),
    [("aarch64", "glibc 2.28", 0xB7), ("aarch64", "musl 1.2", 0xB7), ("x86_64", "musl 1.2", 0x3E)],
)
def test_the_real_index_has_a_program_for_other_platforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, libc: str, mark: int
) -> None:
    monkeypatch.setattr(uv_program, "_version", lambda: "0.9.7")
    try:
        payload = uv_for(Platform(python="3.12.1", machine=machine, libc=libc), None)
    except PayloadError as error:
        if "cannot be reached" not in str(error):
            raise
        pytest.skip(str(error))
    content, _ = program_in(payload)
    assert content[:4] == b"\x7fELF"
    assert int.from_bytes(content[18:20], "little") == mark
    if machine == this_platform().machine:
        path = tmp_path / "uv"
        path.write_bytes(content)
        path.chmod(0o755)
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("uv 0.9.7")
