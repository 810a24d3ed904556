"""Attempts whose ranks run in containers, with the stand-in for docker and with podman."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.core.launch.containers import ContainerRules
from testbed.containers import IMAGE, WITHOUT_PYTHON, settings
from tests.support.containers import need_podman
from tests.support.engines import Engine, config, held
from tests.support.stand_in_runtime import docker


@pytest.fixture
def docker_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only runtime of the hosts of ``engine``."""
    with docker(tmp_path / "runtime") as folder:
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield folder


@pytest.fixture
def with_docker(docker_folder: Path, engine: Engine) -> Engine:
    engine.hook.store.pools.set("local", containers=ContainerRules(runtime="docker"))
    return engine


@pytest.fixture
def with_podman(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Engine:
    need_podman()
    for name, value in settings().items():
        monkeypatch.setenv(name, value)
    found: Engine = request.getfixturevalue("engine")
    found.hook.store.pools.set("local", containers=ContainerRules(runtime="podman"))
    return found


def contained(arguments: str, image: str = "train:1", **more: Any) -> dict[str, Any]:
    environment = {"image": image, **more.pop("environment", {})}
    return config(arguments, environment=environment, **more)


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.nightly
async def test_an_image_is_downloaded_and_ranks_run_in_it(
    with_docker: Engine, docker_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = with_docker.submit(contained("facts", hyperparameters={"lr": 0.5}))
    outcome = await with_docker.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert 'hparams {"lr":0.5}' in caplog.text
    (made,) = StoreSource(with_docker.hook.store).provenance(ticket.trial_id).hosts
    assert made.image is not None
    assert made.image.startswith("train:1@sha256:")
    assert made.driver is None
    assert f"Image train:1 ({made.image}) with docker" in caplog.text
    assert [call[0] for call in calls(docker_folder)][:4] == ["image", "version", "pull", "image"]
    assert held(with_docker) == []


async def test_an_image_that_does_not_exist_is_an_error_of_its_own(with_docker: Engine) -> None:
    outcome = await with_docker.carry(with_docker.submit(contained("facts", "missing")))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "ImageError"
    assert "docker cannot provide image 'missing': manifest for missing not found" in outcome.failure.message
    assert held(with_docker) == []


@pytest.mark.nightly
async def test_credentials_of_a_registry_reach_the_runtime_and_nothing_that_stays(
    with_docker: Engine,
    docker_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    given = {"conn_type": "docker", "host": "registry.example.org", "login": "me", "password": "s3cret-text"}
    monkeypatch.setenv("AIRFLOW_CONN_IMAGES", json.dumps(given))
    document = contained("facts", "registry.example.org/private:1", environment={"registry_conn_id": "images"})
    (docker_folder / "private").write_text("registry.example.org me:s3cret-text")
    ticket = with_docker.submit(document)
    outcome = await with_docker.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    (docker_folder / "private").unlink()
    places = {"log": caplog.text, "plan": str(with_docker.hook.store.attempts.get(ticket.attempt_id).plan)}
    places |= {str(file): file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()}
    secrets = ("s3cret-text", "bWU6czNjcmV0LXRleHQ=")
    assert [name for name, text in places.items() if any(secret in text for secret in secrets)] == []


@pytest.mark.nightly
async def test_what_the_pool_does_not_allow_is_refused_before_a_container_starts(
    with_docker: Engine, docker_folder: Path
) -> None:
    mounts = [{"host_path": "/", "container_path": "/host"}]
    document = contained("facts", bind_mounts=mounts, environment={"add_capabilities": ["SYS_ADMIN"]})
    outcome = await with_docker.carry(with_docker.submit(document))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "ConfigError"
    assert "bind_mounts.0.host_path: / is not allowed in containers of this pool" in outcome.failure.message
    assert "environment.add_capabilities: SYS_ADMIN is not allowed" in outcome.failure.message
    assert "run" not in [call[0] for call in calls(docker_folder)]


@pytest.mark.nightly
async def test_a_link_out_of_an_allowed_folder_and_a_missing_folder_are_refused(
    with_docker: Engine, tmp_path: Path
) -> None:
    allowed = tmp_path / "data"
    allowed.mkdir()
    (allowed / "out").symlink_to("/etc")
    rules = ContainerRules(runtime="docker", mounts=(str(allowed),))
    with_docker.hook.store.pools.set("local", containers=rules)
    mounts = [{"host_path": f"{allowed}/{name}", "container_path": f"/{name}"} for name in ("out", "missing")]
    outcome = await with_docker.carry(with_docker.submit(contained("facts", bind_mounts=mounts)))
    assert outcome is not None
    assert outcome.failure is not None
    assert f"{allowed}/out on host 'local' is a link to /etc" in outcome.failure.message
    assert f"host 'local' has no {allowed}/missing" in outcome.failure.message


@pytest.mark.nightly
async def test_hosts_without_the_runtime_run_the_ranks_without_a_container(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine.hook.store.pools.set("local", containers=ContainerRules(runtime="apptainer"))
    outcome = await engine.carry(engine.submit(contained("facts")))
    assert outcome is not None
    assert outcome.state == "completed"
    assert "Host 'local' has no apptainer: the ranks run in its own environment, not in image train:1" in caplog.text


async def test_a_required_container_needs_a_runtime(engine: Engine) -> None:
    engine.hook.store.pools.set("local", containers=ContainerRules(runtime="apptainer"))
    outcome = await engine.carry(engine.submit(contained("facts", environment={"container": "required"})))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "EnvironmentMissingError"
    assert "has no apptainer, but environment.container is 'required'" in outcome.failure.message


async def test_a_folder_below_the_work_folder_needs_a_container(engine: Engine) -> None:
    engine.hook.store.pools.set("local", containers=ContainerRules(runtime="apptainer"))
    mounts = [{"host_path": "/tmp", "container_path": "cache"}]
    outcome = await engine.carry(engine.submit(contained("facts", bind_mounts=mounts)))
    assert outcome is not None
    assert outcome.failure is not None
    assert "bind_mounts: a folder is mounted below the work folder, and Host 'local' has no" in outcome.failure.message


async def test_a_gang_runs_in_a_container_of_podman_with_folders_of_the_host(
    with_podman: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    data = tmp_path / "data"
    data.mkdir()
    (data / "in").write_text("of the host")
    with_podman.hook.store.pools.set("local", containers=ContainerRules(runtime="podman", mounts=(str(data),)))
    script = tmp_path / "code"
    script.mkdir()
    (script / "train.py").write_text(
        "import os, pathlib\n"
        "import airflow_provider_dtrain.train as dtrain\n"
        "rank = os.environ['RANK']\n"
        "print('found', open('/data/in').read(), sorted(os.listdir('cache')), os.environ['OF_IMAGE'], flush=True)\n"
        "pathlib.Path(f'/data/out{rank}').write_text(rank)\n"
    )
    mounts = [
        {"host_path": str(data), "container_path": "/data"},
        {"host_path": str(data), "container_path": "cache", "read_only": True},
    ]
    document = {
        "entrypoint": "python train.py", "model_dir": ".", "max_restarts": 0, "resources": {"slots_per_trial": 2},
        "environment": {"image": IMAGE, "container": "required"}, "bind_mounts": mounts,
    }  # fmt: skip
    ticket = with_podman.submit(document, folder=script)
    outcome = await with_podman.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    provenance = StoreSource(with_podman.hook.store).provenance(ticket.trial_id)
    (made,) = provenance.hosts
    assert "sha256:" in (made.image or "")
    assert made.python is not None
    assert provenance.packages.get(made.packages or "") is not None, "the packages of the image"
    assert "found of the host ['in'" in caplog.text
    found = [data / f"out{rank}" for rank in range(2)]
    assert [(file.read_text(), file.stat().st_uid) for file in found] == [(str(k), os.getuid()) for k in range(2)]
    argv = ["podman", "ps", "--all", "--format", "{{.Labels}}"]
    assert str(tmp_path) not in subprocess.run(argv, capture_output=True, text=True).stdout


#: Writes what a rank finds in its container to the folder of its first mount.
FACTS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
mounts = {line.split()[4]: line.split()[5].split(",") for line in open("/proc/self/mountinfo")}
try:
    open("/ro/made", "w")
except OSError as error:
    refused = error.strerror
size = os.statvfs("/dev/shm")
facts = {
    "shm": size.f_blocks * size.f_frsize, "refused": refused, "ro": mounts["/ro"],
    "device": os.path.exists("/dev/other"),
    "caps": int(status["CapBnd"], 16),
    "ids": [os.getuid(), os.getgid()], "new": int(status["NoNewPrivs"]), "net": os.readlink("/proc/self/ns/net"),
    "ipc": os.readlink("/proc/self/ns/ipc"),
}
with open(f"/data/{os.environ['RANK']}", "w") as file:
    json.dump(facts, file)
"""
SYS_PTRACE, MKNOD = 19, 27


@pytest.mark.nightly
async def test_every_field_of_a_container_is_in_effect_inside(with_podman: Engine, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(FACTS)
    rules = ContainerRules(
        runtime="podman", mounts=(str(tmp_path),), devices=("/dev/zero",), capabilities=("SYS_PTRACE",)
    )
    with_podman.hook.store.pools.set("local", containers=rules)
    data = str(tmp_path / "data")
    document = {
        "entrypoint": "python train.py", "model_dir": ".", "max_restarts": 0,
        "resources": {
            "slots_per_trial": 2, "shm_size": "48m",
            "devices": [{"host_path": "/dev/zero", "container_path": "/dev/other", "mode": "rw"}],
        },
        # Only the image for CPU slots exists.
        "environment": {
            "image": {"cpu": IMAGE, "cuda": "localhost/dtrain-compiled:none"}, "container": "required",
            "add_capabilities": ["CAP_SYS_PTRACE"], "drop_capabilities": ["MKNOD"],
        },
        "bind_mounts": [
            {"host_path": data, "container_path": "/data"},
            {"host_path": data, "container_path": "/ro", "read_only": True, "propagation": "rslave"},
        ],
    }  # fmt: skip
    outcome = await with_podman.carry(with_podman.submit(document, folder=tmp_path / "code"))
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    found = [json.loads((tmp_path / f"data/{rank}").read_text()) for rank in range(2)]
    for facts in found:
        assert (facts["shm"], facts["refused"], facts["device"]) == (48 << 20, "Read-only file system", True)
        assert "ro" in facts["ro"]
        assert (facts["caps"] >> SYS_PTRACE & 1, facts["caps"] >> MKNOD & 1) == (1, 0)
        assert (facts["ids"], facts["new"]) == ([os.getuid(), os.getgid()], 1)
        assert facts["net"] == os.readlink("/proc/self/ns/net")
        assert facts["ipc"] != os.readlink("/proc/self/ns/ipc")


@pytest.mark.nightly
async def test_images_of_podman_that_cannot_be_used_are_named(with_podman: Engine) -> None:
    outcome = await with_podman.carry(with_podman.submit(contained("facts", WITHOUT_PYTHON)))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "ImageError"
    assert "python3" in outcome.failure.message
    outcome = await with_podman.carry(with_podman.submit(contained("facts", "localhost/dtrain-compiled:missing")))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "ImageError"
    assert "podman cannot provide image 'localhost/dtrain-compiled:missing'" in outcome.failure.message
