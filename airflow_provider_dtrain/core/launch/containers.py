"""Container of a run on one host: the rules of its pool, and the command that starts it."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from airflow_provider_dtrain.errors import Problem

if TYPE_CHECKING:
    # Records of trials have the rules of a pool, and most commands need no configuration.
    from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
    from airflow_provider_dtrain.core.config.sections import BindMount, Device

Runtime = Literal["podman", "docker", "apptainer"]
#: Label by which the supervisor finds the containers of a run. Its value is the folder of the run.
LABEL: Final = "dtrain.run"
#: First process of a container, in the Python of the image. Its arguments are the host's state_dir and the run.
_FIRST: Final = (
    "import sys; "
    "sys.version_info >= (3, 9) or sys.exit('Python 3.9 or newer is needed, this is ' + sys.version.split()[0]); "
    "sys.path.insert(0, {program!r}); from airflow_provider_dtrain.supervisor.contained import main; main()"
)


@dataclass(frozen=True, kw_only=True)
class ContainerRules:
    """Rules for the containers of a pool. By default, none of it is allowed."""

    #: The only runtime that is used; None: the first one that a host has.
    runtime: Runtime | None = None
    #: Folders of the hosts that may be mounted, with everything below them.
    mounts: tuple[str, ...] = ()
    #: Devices of the hosts that may be mapped, with everything below a folder of devices.
    devices: tuple[str, ...] = ()
    #: Capabilities that may be added, e.g. ``SYS_PTRACE``.
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContainerHost:
    """Facts of a host about its containers."""

    runtime: Runtime
    #: What the runtime calls the image: its id, or the path of an apptainer image.
    image: str
    #: Digest of its content, as the registry or the runtime states it.
    digest: str
    uid: int
    gid: int
    #: Supplementary groups of the account.
    groups: tuple[int, ...] = ()
    state_dir: str
    #: Folder of the supervisor's program.
    program: str
    #: Folder with the training library below its digest.
    libraries: str


def image_of(config: ExperimentConfig, *, has_gpus: bool) -> str | None:
    """Return the image for the ranks of a gang, None if the configuration has none for their devices."""
    image = config.environment.image
    return image.get("cuda" if has_gpus else "cpu") if isinstance(image, Mapping) else image


def needs_container(config: ExperimentConfig) -> list[Problem]:
    """Return one problem for each field that hosts without a container runtime cannot serve."""
    found = []
    devices = config.resources.devices
    if any(posixpath.normpath(one.host_path) != posixpath.normpath(one.container_path) for one in devices):
        found.append(Problem(path="resources.devices", message="a device has another path than on the host"))
    if any(not mount.container_path.startswith("/") for mount in config.bind_mounts):
        found.append(Problem(path="bind_mounts", message="a folder is mounted below the work folder"))
    return found


def container_problems(config: ExperimentConfig, rules: ContainerRules, storage: str | None) -> list[Problem]:
    """Return one problem for each part of a container that its pool does not allow.

    :param storage: folder of the hosts for checkpoints
    """
    return list(_problems(config, rules, storage))


def _problems(config: ExperimentConfig, rules: ContainerRules, storage: str | None) -> Iterator[Problem]:
    for index, mount in enumerate(config.bind_mounts):
        if not is_allowed(mount.host_path, rules.mounts):
            yield _not_allowed(f"bind_mounts.{index}.host_path", mount.host_path, rules.mounts, "mounts")
    if storage is not None and not is_allowed(storage, rules.mounts):
        yield _not_allowed("checkpoint_storage", storage, rules.mounts, "mounts")
    for index, device in enumerate(config.resources.devices):
        if not is_allowed(device.host_path, rules.devices):
            yield _not_allowed(f"resources.devices.{index}.host_path", device.host_path, rules.devices, "devices")
    for name in config.environment.add_capabilities:
        if name not in rules.capabilities:
            yield _not_allowed("environment.add_capabilities", name, rules.capabilities, "capabilities")


def is_allowed(path: str, roots: Iterable[str]) -> bool:
    """Return whether an absolute path is one of some paths, or below one of them."""
    normal = posixpath.normpath(path)
    return any(normal == root or normal.startswith(root.rstrip("/") + "/") for root in map(posixpath.normpath, roots))


def _not_allowed(path: str, value: str, allowed: Sequence[str], option: str) -> Problem:
    known = f"allows {', '.join(allowed)}" if allowed else "allows none"
    fix = f"Ask an administrator for: airflow dtrain pools set POOL --container-{option} {value}"
    return Problem(path=path, message=f"{value} is not allowed in containers of this pool, which {known}. {fix}")


def container_command(
    config: ExperimentConfig,
    host: ContainerHost,
    *,
    run: str,
    library: str,
    has_gpus: bool,
    storage: str | None = None,
) -> list[str]:
    """Return the command that starts the container of a run on a host.

    :param run: name of the run
    :param library: digest of the training library
    :param has_gpus: the gang has GPUs, which the container gets. Its ranks see those of their gang
    :param storage: folder of the hosts for checkpoints, None for the run's own folder or a bucket
    """
    folder = f"{host.state_dir}/runs/{run}"
    mounts = [
        _mount(folder, folder),
        _mount(host.program, host.program, "ro"),
        _mount(f"{host.libraries}/{library}", f"{host.libraries}/{library}", "ro"),
        *([_mount(storage, storage)] if storage is not None else []),
        *(_bind_mount(mount, folder, host.runtime) for mount in config.bind_mounts),
    ]
    variables = {"DTRAIN_RUN": run, "DTRAIN_RUN_DIR": folder}
    options = [
        *(part for mount in mounts for part in ("--mount", mount)),
        *(part for name, value in variables.items() for part in ("--env", f"{name}={value}")),
    ]
    python = config.environment.interpreter or "python3"
    first = ["-I", "-c", _FIRST.format(program=host.program), host.state_dir, run]
    if host.runtime == "apptainer":
        return [*_apptainer(config, has_gpus=has_gpus), *options, host.image, python, *first]
    label = ["--label", f"{LABEL}={folder}"]
    return [*_oci(config, host, has_gpus=has_gpus), *label, *options, "--entrypoint", python, host.image, *first]


def _oci(config: ExperimentConfig, host: ContainerHost, *, has_gpus: bool) -> list[str]:
    """Return the command of podman or docker up to the options that belong to the run."""
    resources = config.resources
    is_rootless = host.runtime == "podman" and host.uid != 0
    # Ranks of other hosts connect to addresses of the host. Without a size of its own, /dev/shm is that of the host.
    memory = ["--ipc", "host"] if resources.shm_size is None else ["--shm-size", str(size_bytes(resources.shm_size))]
    # Files that the ranks write belong to the account, and the account may signal the ranks.
    user = ["--userns", "keep-id"] if is_rootless else []
    user += ["--user", f"{host.uid}:{host.gid}"]
    groups = () if is_rootless else (group for group in host.groups if group != host.gid)
    gpus: list[str] = []
    if has_gpus:
        gpus = ["--device", "nvidia.com/gpu=all"] if host.runtime == "podman" else ["--gpus", "all"]
    return [
        host.runtime, "run", "--rm", "--pull", "never", "--log-driver", "none", "--workdir", "/",
        "--network", "host", *memory, "--pids-limit", "-1",
        "--security-opt", "no-new-privileges", "--security-opt", "label=disable",
        *user, *(part for group in groups for part in ("--group-add", str(group))), *gpus,
        *(part for device in resources.devices for part in ("--device", _device(device))),
        *(part for name in config.environment.add_capabilities for part in ("--cap-add", name)),
        *(part for name in config.environment.drop_capabilities for part in ("--cap-drop", name)),
    ]  # fmt: skip


def _apptainer(config: ExperimentConfig, *, has_gpus: bool) -> list[str]:
    """Return the command of apptainer up to the options that belong to the run.

    It runs as the account, with /dev, /tmp and the network of the host.
    """
    environment = config.environment
    changes = {"--add-caps": environment.add_capabilities, "--drop-caps": environment.drop_capabilities}
    return [
        "apptainer", "exec", "--cleanenv", "--no-home", "--pid", "--no-init", "--writable-tmpfs", "--pwd", "/",
        *(["--nv"] if has_gpus else []),
        *(part for option, names in changes.items() if names for part in (option, ",".join(f"CAP_{n}" for n in names))),
    ]  # fmt: skip


def _device(device: Device) -> str:
    return f"{device.host_path}:{device.container_path}:{device.mode}"


def _bind_mount(mount: BindMount, folder: str, runtime: Runtime) -> str:
    target = posixpath.normpath(posixpath.join(folder, "work", mount.container_path))
    options = ["ro"] if mount.read_only else []
    if runtime != "apptainer":
        options.append(f"bind-propagation={mount.propagation}")
    return _mount(mount.host_path, target, *options)


def _mount(source: str, target: str, *options: str) -> str:
    """Return the value of ``--mount``, a line of CSV in all three runtimes."""
    line = io.StringIO()
    parts = ["type=bind", f"source={source}", f"destination={target}", *options]
    csv.writer(line, lineterminator="").writerow(parts)
    return line.getvalue()


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def size_bytes(size: int | str) -> int:
    """Return a size of a configuration, e.g. ``1.5 GiB``, in bytes."""
    found = re.fullmatch(r"([0-9.]+)\s*([kmgtp]?)i?b?", str(size).lower())
    assert found is not None
    return int(float(found[1]) * _UNITS[found[2]])
