"""Gangs whose ranks are in containers of two hosts: their rendezvous, and the same losses as without containers."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.launch.containers import ContainerRules
from testbed.containers import IMAGE
from testbed.netns import NamespaceHosts
from testbed.podman_settings import write_settings
from tests.support.containers import need_podman
from tests.support.engines import Engine
from tests.support.pair import register_pair

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.nightly]
SITE = f"/usr/local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
#: Its losses depend on each bit of the exchanged gradients.
TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
random = torch.Generator().manual_seed(100 + dist.get_rank())
losses = []
for _ in range(10):
    points = torch.randn(16, 8, generator=random)
    loss = ((model(points) - points.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
found = torch.tensor([float("OF_IMAGE" in os.environ)])
dist.all_reduce(found)
if dist.get_rank() == 0:
    # The log of torchrun's workers is that of all ranks of their host.
    print("IN IMAGE", int(found), "LOSSES", *losses, flush=True)
dist.destroy_process_group()
"""


def cgroup_mounts() -> str:
    """Return lines of a shell that mount this machine's cgroups, which the /sys of a network namespace lacks."""
    lines = ["grep -q ' /sys/fs/cgroup' /proc/self/mountinfo || {"]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        path, (kind, _, options) = before.split()[4], after.split()
        if path.startswith("/sys/fs/cgroup"):
            shown = [one for one in options.split(",") if one not in ("rw", "xattr")]
            named = ["none"] if any(one.startswith("name=") for one in shown) else []
            option = f"-o {','.join(named + shown)} " if named + shown and kind != "cgroup2" else ""
            lines.append(f"mkdir -p {path}; mount -t {kind} {option}none {path}")
    return "\n".join([*lines, "}", ""])


@pytest.fixture
def pair(namespace_hosts: Callable[..., NamespaceHosts]) -> Iterator[NamespaceHosts]:
    """Two hosts with a podman of their own, which finds the images of this machine."""
    need_podman()
    folder = Path(tempfile.mkdtemp(prefix="dtrain-podman-", dir="/opt"))
    try:
        # Folders that each of them has for itself.
        (folder / "storage.conf").write_text(
            '[storage]\ndriver = "overlay"\ngraphroot = "/var/tmp/storage"\nrunroot = "/run/storage"\n'
            '[storage.options]\nadditionalimagestores = ["/var/lib/containers/storage"]\n'
        )
        variables = f"CONTAINERS_CONF={write_settings(folder)} CONTAINERS_STORAGE_CONF={folder}/storage.conf"
        program = folder / "podman"
        program.write_text(f'#!/bin/sh\n{cgroup_mounts()}{variables} exec {shutil.which("podman")} "$@"\n')
        program.chmod(0o755)
        folder.chmod(0o755)
        path = f"{folder}:{os.defpath}:/usr/sbin:/sbin"
        yield namespace_hosts(count=2, slots=2, sshd_extra=f"SetEnv PATH={path}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_gang_of_two_hosts_in_containers_trains_bit_for_bit_as_without(
    engine: Engine,
    pair: NamespaceHosts,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.INFO)
    register_pair(engine.hook, pair, monkeypatch)
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    packages = str(Path(spec.origin).parents[1])
    engine.hook.store.pools.set("pair", containers=ContainerRules(runtime="podman", mounts=(packages,)))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(TRAIN)
    printed = []
    for container, launch in (
        ("off", "python train.py"),
        ("required", "python train.py"),
        ("required", "torchrun train.py"),
    ):
        document: dict[str, Any] = {
            "entrypoint": launch, "model_dir": ".", "max_restarts": 0,
            "resources": {"slots_per_trial": 4, "pool": "pair"},
            "environment": {"image": IMAGE, "container": container, "variables": {"OMP_NUM_THREADS": "1"}},
        }  # fmt: skip
        if container == "required":
            document["bind_mounts"] = [{"host_path": packages, "container_path": SITE, "read_only": True}]
        caplog.clear()
        outcome = await engine.carry(engine.submit(document, folder=tmp_path / "code"))
        assert outcome is not None
        assert outcome.state == "completed", f"{outcome}\n{caplog.text}"
        printed.append(
            next(line.partition("IN IMAGE ")[2].split() for line in caplog.text.splitlines() if "LOSSES" in line)
        )
    assert [line[0] for line in printed] == ["0", "4", "4"]
    assert len(printed[0]) == 12
    assert printed[0][1:] == printed[1][1:] == printed[2][1:]
