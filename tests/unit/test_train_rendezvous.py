"""The hook that serves the store of PyTorch's rendezvous beside the ranks, on one address."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.payload import library
from airflow_provider_dtrain.train.process import rendezvous
from airflow_provider_dtrain.train.process.rendezvous import listener


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


@pytest.mark.parametrize(
    ("version", "libuv"), [("2.4.1+cu121", False), ("2.5.0", True), ("2.13.0+cpu", True), ("2.40.0", True), ("", True)]
)
def test_the_older_server_is_used_where_the_newer_one_takes_no_socket(
    monkeypatch: pytest.MonkeyPatch, version: str, libuv: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    assert rendezvous._libuv_takes_sockets() is libuv


class Torch:
    """The parts of ``torch.distributed`` that the hook uses, and a store that names its place."""

    def __init__(self, *, is_available: bool = True) -> None:
        self.distributed = SimpleNamespace(
            is_available=lambda: is_available, PrefixStore=lambda prefix, store: (prefix, store)
        )
        self.rendezvous = SimpleNamespace(_create_c10d_store=self.create)

    def create(self, host: str, port: int, *_: Any) -> tuple[str, int, str]:
        return host, port, os.environ[rendezvous.AGENT_STORE]

    def store(self, host: str, port: int) -> Any:
        return self.rendezvous._create_c10d_store(host, port, 0, 2, 5)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The stores that the hook has started: address and port of each."""
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(rendezvous, "_serve", lambda host, port: found.append((host, port)))
    return found


@pytest.fixture
def install(port: int, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Torch]:
    """Run the hook in a rank: ``install(rank=1)``. Other names are variables of its environment."""
    monkeypatch.delenv(rendezvous.STORE, raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "t1.1.7")
    monkeypatch.setenv(rendezvous.AGENT_STORE, "False")

    def run(rank: int = 0, is_available: bool = True, **environ: str) -> Torch:
        torch = Torch(is_available=is_available)
        for name, value in {"RANK": str(rank), **environ}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
        monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", torch.rendezvous)
        rendezvous.install()
        return torch

    return run


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_serves_the_store_and_every_rank_is_a_client_of_it(
    install: Callable[..., Torch], started: list[tuple[str, int]], port: int, rank: int
) -> None:
    torch = install(rank)
    assert started == [("127.0.0.1", port)] * (rank == 0)
    assert torch.store("127.0.0.1", port) == ("127.0.0.1", port, "True")


def test_a_later_group_does_not_read_the_keys_of_the_former(
    install: Callable[..., Torch], started: list[tuple[str, int]], port: int
) -> None:
    torch = install()
    store = ("127.0.0.1", port, "True")
    assert [torch.store("127.0.0.1", port) for _ in range(3)] == [store, ("group_1", store), ("group_2", store)]


def test_a_group_with_an_address_of_its_own_has_its_own_store(
    install: Callable[..., Torch], started: list[tuple[str, int]], port: int
) -> None:
    torch = install()
    assert torch.store("localhost", 4711) == ("localhost", 4711, "False")
    assert os.environ[rendezvous.AGENT_STORE] == "True"
    assert torch.store("127.0.0.1", port) == ("127.0.0.1", port, "True")


def test_the_ranks_of_a_launcher_inside_a_rank_are_clients_of_its_store(
    install: Callable[..., Torch], started: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    # The environment that torchrun gives its ranks, which import PyTorch again.
    torch = install(TORCHELASTIC_RUN_ID="none", MASTER_PORT="4711")
    assert len(started) == 1
    assert torch.store("127.0.0.1", 4711) == ("127.0.0.1", 4711, "True")


@pytest.mark.parametrize("environ", [{"DTRAIN_RUN": ""}, {"is_available": False}], ids=["no trial", "no distributed"])
def test_elsewhere_pytorch_stays_as_it_is(
    install: Callable[..., Torch], started: list[tuple[str, int]], environ: dict[str, Any]
) -> None:
    torch = install(**environ)
    assert (started, torch.store("a", 1)) == ([], ("a", 1, "False"))


def test_a_process_that_waits_for_its_children_does_not_meet_the_store_which_ends_at_once(port: int) -> None:
    code = (
        "import os\n"
        "from airflow_provider_dtrain.train.process import rendezvous\n"
        "rendezvous._store = lambda host, port, server: os.execlp('sleep', 'sleep', '1000')\n"
        f"store = rendezvous._serve('127.0.0.1', {port})\n"
        "assert os.getsid(store) not in (os.getsid(0), 0)\n"
        "try:\n    os.wait()\nexcept ChildProcessError:\n    print('no child')\n"
        "os.environ[rendezvous.STORE] = f'127.0.0.1 4711 {store}'\n"
        "rendezvous.uninstall()\n"
        "stat = f'/proc/{store}/stat'\n"
        "assert not os.path.exists(stat) or open(stat).read().split()[2] in 'ZX'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "no child\n", done.stderr


def test_hosts_find_the_hook_as_an_entry_point_that_imports_nothing_of_the_library(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(library().content)) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "[hook] = [one for one in entry_points(group='torch.backends') if one.name == 'dtrain_rendezvous']\n"
        "hook.load()()\n"
        "print('airflow_provider_dtrain' in sys.modules, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DTRAIN_RUN": "t1.1.7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False False\n", done.stderr
