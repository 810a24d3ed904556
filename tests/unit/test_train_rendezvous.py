"""The hook that makes PyTorch's rendezvous listen on one address."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.payload import library
from airflow_provider_dtrain.train.process.rendezvous import bound, listener


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, which the launch gave to this rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = int(probe.getsockname()[1])
    for name, value in {"DTRAIN_RUN": "t1.1.7", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(number)}.items():
        monkeypatch.setenv(name, value)
    return number


def test_the_store_listens_on_the_address_of_the_launch(port: int) -> None:
    server = listener("127.0.0.1", port)
    assert server is not None
    with server:
        assert server.getsockname() == ("127.0.0.1", port)
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_an_ipv6_address_is_one_as_well(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    monkeypatch.setenv("MASTER_ADDR", "::1")
    server = listener("::1", port)
    assert server is not None
    with server:
        assert server.getsockname()[:2] == ("::1", port)


def test_the_port_that_the_supervisor_holds_can_be_listened_on(port: int) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", port))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server = listener("127.0.0.1", port)
        assert server is not None
        server.close()


def test_a_port_that_listens_already_is_left_to_pytorch(port: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert listener("127.0.0.1", port) is None


@pytest.mark.parametrize(
    ("host", "offset", "changed"),
    [
        ("localhost", 0, {"MASTER_ADDR": "localhost"}),
        ("127.0.0.2", 0, {}),
        ("127.0.0.1", 1, {}),
        ("127.0.0.1", 0, {"DTRAIN_RUN": ""}),
    ],
    ids=["a name", "another address", "another port", "no trial"],
)
def test_other_stores_stay_as_pytorch_makes_them(
    port: int, monkeypatch: pytest.MonkeyPatch, host: str, offset: int, changed: dict[str, str]
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    assert listener(host, port + offset) is None


@pytest.mark.parametrize(("rank", "agent"), [(1, "False"), (0, "True")])
def test_a_client_opens_no_socket(port: int, monkeypatch: pytest.MonkeyPatch, rank: int, agent: str) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    create = bound(lambda *arguments: arguments)
    assert create("127.0.0.1", port, rank, 2, 5) == ("127.0.0.1", port, rank, 2, 5, True)


@pytest.mark.parametrize(
    ("version", "libuv"), [("2.4.1+cu121", False), ("2.5.0", True), ("2.13.0+cpu", True), ("2.40.0", True), ("", True)]
)
def test_the_older_server_is_used_where_the_newer_one_takes_no_socket(
    port: int, monkeypatch: pytest.MonkeyPatch, version: str, libuv: bool
) -> None:
    def create_store(**options: Any) -> bool:
        os.close(options["master_listen_fd"])
        return bool(options["use_libuv"])

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(TCPStore=create_store))
    create = bound(lambda *_: pytest.fail("PyTorch would listen on every interface"))
    assert create("127.0.0.1", port, 0, 2, 5) is libuv


def test_hosts_find_the_hook_as_an_entry_point_that_imports_nothing_of_the_library(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(library().content)) as archive:
        archive.extractall(tmp_path, filter="data")
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "[hook] = [one for one in entry_points(group='torch.backends') if one.name == 'dtrain_rendezvous']\n"
        "hook.load()()\n"
        "print('airflow_provider_dtrain' in sys.modules, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DTRAIN_RUN": "t1.1.7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False False\n", done.stderr
