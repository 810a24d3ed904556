"""Command lines of containers, and what a pool allows in them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.core.config.unsupported import notices, unsupported
from airflow_provider_dtrain.core.launch.containers import (
    ContainerHost,
    ContainerRules,
    Runtime,
    container_command,
    container_problems,
    image_of,
    is_allowed,
    size_bytes,
)
from airflow_provider_dtrain.errors import ConfigError

RUN = "0123abcd-t7.1.42"
DATA_SET = "/data-sets/x"
FULL: dict[str, Any] = {
    "entrypoint": "python train.py",
    "environment": {"image": "registry.example.org/team/train:1", "python": "/opt/conda/bin/python"},
    "resources": {
        "shm_size": "1.5g",
        "devices": [{"host_path": "/dev/infiniband", "container_path": "/dev/infiniband", "mode": "rw"}],
    },
    "bind_mounts": [
        {"host_path": "/data/a, b", "container_path": "/data", "read_only": True},
        {"host_path": DATA_SET, "container_path": "cache", "propagation": "rslave"},
    ],
}
MOUNTS = [
    "--mount", f"type=bind,source=/state/runs/{RUN},destination=/state/runs/{RUN}",
    "--mount", "type=bind,source=/home/u/.dtrain/supervisor/5f,destination=/home/u/.dtrain/supervisor/5f,ro",
    "--mount", "type=bind,source=/home/u/.dtrain/libraries/c0,destination=/home/u/.dtrain/libraries/c0,ro",
]  # fmt: skip
VARIABLES = ["--env", f"DTRAIN_RUN={RUN}", "--env", f"DTRAIN_RUN_DIR=/state/runs/{RUN}"]
FIRST = [
    "-I",
    "-c",
    "import sys; sys.version_info >= (3, 9) or sys.exit('Python 3.9 or newer is needed, this is ' + "
    "sys.version.split()[0]); sys.path.insert(0, '/home/u/.dtrain/supervisor/5f'); "
    "from airflow_provider_dtrain.supervisor.contained import main; main()",
    "/state",
    RUN,
]


def command(runtime: Runtime, document: Any, *, uid: int = 1000, has_gpus: bool = False, **options: Any) -> list[str]:
    host = ContainerHost(
        runtime=runtime, image="sha256:99", digest="sha256:77", uid=uid, gid=uid, groups=(uid, 44),
        state_dir="/state", program="/home/u/.dtrain/supervisor/5f", libraries="/home/u/.dtrain/libraries",
    )  # fmt: skip
    config = ExperimentConfig.model_validate(document)
    return container_command(config, host, run=RUN, library="c0", has_gpus=has_gpus, **options)


def test_the_command_of_rootless_podman_with_every_field() -> None:
    assert command("podman", FULL, has_gpus=True, storage="/mnt/checkpoints") == [
        "podman", "run", "--rm", "--pull", "never", "--log-driver", "none", "--workdir", "/",
        "--network", "host", "--shm-size", "1610612736", "--pids-limit", "-1",
        "--security-opt", "no-new-privileges", "--security-opt", "label=disable",
        "--userns", "keep-id", "--user", "1000:1000",
        "--device", "nvidia.com/gpu=all", "--device", "/dev/infiniband:/dev/infiniband:rw",
        "--label", f"dtrain.run=/state/runs/{RUN}", *MOUNTS,
        "--mount", "type=bind,source=/mnt/checkpoints,destination=/mnt/checkpoints",
        "--mount", 'type=bind,"source=/data/a, b",destination=/data,ro,bind-propagation=rprivate',
        "--mount", f"type=bind,source={DATA_SET},destination=/state/runs/{RUN}/work/cache,bind-propagation=rslave",
        *VARIABLES, "--entrypoint", "/opt/conda/bin/python", "sha256:99", *FIRST,
    ]  # fmt: skip


def test_the_command_of_docker_on_gpus() -> None:
    assert command("docker", {"entrypoint": "python train.py"}, has_gpus=True) == [
        "docker", "run", "--rm", "--pull", "never", "--log-driver", "none", "--workdir", "/",
        "--network", "host", "--ipc", "host", "--pids-limit", "-1",
        "--security-opt", "no-new-privileges", "--security-opt", "label=disable",
        "--user", "1000:1000", "--group-add", "44", "--gpus", "all",
        "--label", f"dtrain.run=/state/runs/{RUN}", *MOUNTS,
        *VARIABLES, "--entrypoint", "python3", "sha256:99", *FIRST,
    ]  # fmt: skip


def test_the_command_of_apptainer_with_every_field() -> None:
    assert command("apptainer", FULL, has_gpus=True) == [
        "apptainer", "exec", "--cleanenv", "--no-home", "--pid", "--no-init", "--writable-tmpfs", "--pwd", "/", "--nv",
        *MOUNTS,
        "--mount", 'type=bind,"source=/data/a, b",destination=/data,ro',
        "--mount", f"type=bind,source={DATA_SET},destination=/state/runs/{RUN}/work/cache",
        *VARIABLES, "sha256:99", "/opt/conda/bin/python", *FIRST,
    ]  # fmt: skip


def test_containers_of_root_need_no_user_namespace() -> None:
    line = command("podman", {"entrypoint": "python train.py"}, uid=0)
    assert "--userns" not in line
    assert line[line.index("--user") + 1] == "0:0"
    assert line[line.index("--group-add") + 1] == "44"


def test_no_gpu_is_given_to_a_gang_of_cpu_slots() -> None:
    for runtime in ("podman", "docker", "apptainer"):
        line = command(runtime, {"entrypoint": "python train.py"})
        assert not {"--device", "--gpus", "--nv"} & set(line)


@pytest.mark.parametrize(
    ("image", "of_gpus", "of_cpus"),
    [("a", "a", "a"), ({"cuda": "g", "cpu": "c"}, "g", "c"), ({"gpu": "g"}, "g", None), (None, None, None)],
)
def test_the_image_is_that_of_the_gangs_devices(image: Any, of_gpus: str | None, of_cpus: str | None) -> None:
    document = {"entrypoint": "python train.py", "environment": {"image": image}}
    config = ExperimentConfig.model_validate(document)
    assert (image_of(config, has_gpus=True), image_of(config, has_gpus=False)) == (of_gpus, of_cpus)


@pytest.mark.parametrize(
    ("path", "roots", "answer"),
    [
        ("/data/x", ("/data",), True),
        ("/data", ("/data/",), True),
        ("/data2", ("/data",), False),
        ("/", ("/data",), False),
        ("/data//x/.", ("/data",), True),
        ("/etc", ("/",), True),
        ("/etc", (), False),
    ],
)
def test_a_folder_is_allowed_below_a_root(path: str, roots: tuple[str, ...], answer: bool) -> None:
    assert is_allowed(path, roots) is answer


def test_everything_that_the_pool_does_not_allow_is_named_at_once() -> None:
    config = ExperimentConfig.model_validate(FULL)
    found = [(one.path, one.message) for one in container_problems(config, ContainerRules(mounts=("/data",)), "/mnt")]
    assert [path for path, _ in found] == [
        "bind_mounts.1.host_path",
        "checkpoint_storage",
        "resources.devices.0.host_path",
    ]
    assert found[0][1] == (
        "/data-sets/x is not allowed in containers of this pool, which allows /data. Ask an administrator for: airflow "
        "dtrain pools set POOL --container-mounts /data-sets/x"
    )
    assert "which allows none" in found[2][1]
    rules = ContainerRules(mounts=("/data", "/data-sets", "/mnt"), devices=("/dev/infiniband",))
    assert container_problems(config, rules, "/mnt") == []


def test_a_required_container_needs_an_image_and_an_image_no_lock_file() -> None:
    config = ExperimentConfig.model_validate({"entrypoint": "x", "environment": {"container": "required"}})
    assert [str(problem) for problem in unsupported(config)] == [
        "environment.container: is 'required', but environment.image is not set"
    ]
    environment = {"image": "a", "requirements": "requirements.lock"}
    with pytest.raises(ConfigError, match="image is combined with requirements"):
        ExperimentConfig.model_validate({"entrypoint": "x", "environment": environment})
    ExperimentConfig.model_validate({"entrypoint": "x", "environment": {**environment, "container": "off"}})


def test_notices_are_about_hosts_without_a_runtime_if_an_image_is_given() -> None:
    def noticed(**environment: Any) -> list[str]:
        config = ExperimentConfig.model_validate({**FULL, "environment": {**FULL["environment"], **environment}})
        assert (unsupported(config) == []) is config.environment.is_contained
        return [text.partition(":")[2] for text in notices(config, {})]

    assert noticed(container="required") == []
    assert all("on hosts without podman, docker and apptainer, ranks run without" in text for text in noticed())
    assert all(text.startswith(" ranks run without containers") for text in noticed(container="off"))


@pytest.mark.parametrize(
    ("size", "count"), [(5, 5), ("4g", 4 << 30), ("512 mi", 512 << 20), ("1.5 GiB", 3 << 29), ("7b", 7), ("64", 64)]
)
def test_sizes_are_those_of_docker(size: int | str, count: int) -> None:
    assert size_bytes(size) == count
