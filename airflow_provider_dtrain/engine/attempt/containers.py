"""Containers of a launch: whether its ranks run in one, and the image on each host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.launch.containers import (
    ContainerHost,
    container_problems,
    image_of,
    is_allowed,
    needs_container,
)
from airflow_provider_dtrain.core.lifecycle.timing import IMAGE_TIMEOUT_S
from airflow_provider_dtrain.engine.attempt.host_calls import on_all
from airflow_provider_dtrain.engine.session.runtime import answer
from airflow_provider_dtrain.errors import (
    ConfigError,
    EnvironmentMissingError,
    HostProtocolError,
    HostRefusedError,
    ImageError,
    Problem,
)
from airflow_provider_dtrain.hooks.secrets import registry_login

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink

_INSTALL = "Install podman, docker or apptainer there"


async def provide_images(rt: Runtime, job: Job, links: Mapping[str, HostLink]) -> dict[str, ContainerHost]:
    """Return the image on each host of a gang, {} if its ranks run without containers.

    :raises ConfigError: the pool does not allow what the configuration requests, or it needs a container
    :raises EnvironmentMissingError: hosts lack a runtime, or a folder
    :raises ImageError: an image cannot be provided
    """
    config = job.config
    image = image_of(config, has_gpus=job.has_gpus) if config.environment.is_contained else None
    if image is None:
        _check_needs(job, f"environment.image has no image for {'GPUs' if job.has_gpus else 'CPU slots'}")
        return {}
    rt.log.info("Providing image %s on %d host(s)", image, len(links))
    login = await registry_login(config, job.sealed, image)
    answers = await on_all(links, lambda host, link: _provide(link, job, image, login))
    without = [host for host, found in answers.items() if found["runtime"] is None]
    if without:
        return _without_runtime(rt, job, image, without, answers)
    problems = container_problems(config, job.rules, job.shared_path)
    images = {host: _image_on(host, found) for host, found in answers.items()}
    for host, found in answers.items():
        problems += _path_problems(host, found.get("paths") or {}, job)
    if problems:
        raise ConfigError(problems)
    _log_images(rt, image, images)
    return images


def _without_runtime(
    rt: Runtime, job: Job, image: str, without: list[str], answers: Mapping[str, Any]
) -> dict[str, ContainerHost]:
    """Return {} if no host of the gang can run containers and the ranks may run without.

    :raises EnvironmentMissingError: only some of the hosts can, or the configuration requires it
    """
    wanted = f" {job.rules.runtime}" if job.rules.runtime else " container runtime"
    lacking = f"Host '{without[0]}' has no{wanted}"
    if len(without) < len(answers):
        raise EnvironmentMissingError(
            f"{lacking}, other hosts of the gang have one, and all ranks must run alike. {_INSTALL}, or set "
            "environment.container to 'off'."
        )
    if job.config.environment.container == "required":
        raise EnvironmentMissingError(f"{lacking}, but environment.container is 'required'. {_INSTALL}.")
    _check_needs(job, lacking)
    rt.log.warning("%s: the ranks run in its own environment, not in image %s", lacking, image)
    return {}


def _check_needs(job: Job, reason: str) -> None:
    problems = needs_container(job.config)
    if job.config.environment.container == "required" and not problems:
        problems = [Problem(path="environment.container", message="it is 'required'")]
    if problems:
        raise ConfigError([Problem(path=one.path, message=f"{one.message}, and {reason}") for one in problems])


async def _provide(link: HostLink, job: Job, image: str, login: Mapping[str, str] | None) -> JsonObject:
    config = job.config
    paths = [mount.host_path for mount in config.bind_mounts]
    paths += [device.host_path for device in config.resources.devices]
    paths += [job.shared_path] if job.shared_path is not None else []
    asked: dict[str, Any] = {
        "runtime": job.rules.runtime,
        "image": image,
        "always": config.environment.force_pull_image,
        "login": login,
        "limit_s": IMAGE_TIMEOUT_S,
        "paths": paths,
    }
    try:
        return await answer(link, "image", timeout_s=IMAGE_TIMEOUT_S + 60.0, **asked)
    except HostRefusedError as error:
        raise image_error(error) from error


def image_error(error: HostRefusedError) -> HostRefusedError | ImageError:
    """Return the error for a refusal that concerns an image or its container, and any other refusal itself."""
    return ImageError(f"Host '{error.host}': {error.reason}") if error.code in ("image", "container") else error


def _image_on(host: str, found: Mapping[str, Any]) -> ContainerHost:
    names = ("runtime", "image", "digest", "uid", "gid", "state_dir", "program", "libraries")
    facts = {name: found.get(name) for name in names}
    if any(value is None for value in facts.values()) or facts["runtime"] not in ("podman", "docker", "apptainer"):
        raise HostProtocolError(host, f"Host '{host}' broke the protocol: 'image' lacks a fact about its containers.")
    return ContainerHost(**facts, groups=tuple(found.get("groups") or ()))  # type: ignore[arg-type]


def _path_problems(host: str, paths: Mapping[str, str | None], job: Job) -> list[Problem]:
    """Return one problem for each folder or device that a host lacks, or that is a link to one that is not allowed."""
    config = job.config
    requested = [(f"bind_mounts.{n}", one.host_path, job.rules.mounts) for n, one in enumerate(config.bind_mounts)]
    requested += [
        (f"resources.devices.{n}", one.host_path, job.rules.devices) for n, one in enumerate(config.resources.devices)
    ]
    if job.shared_path is not None:
        requested.append(("checkpoint_storage", job.shared_path, job.rules.mounts))
    problems = []
    for field, path, allowed in requested:
        real = paths.get(path)
        if real is None:
            problems.append(Problem(path=field, message=f"host '{host}' has no {path}. Create it there"))
        elif is_allowed(path, allowed) and not is_allowed(real, allowed):
            message = f"{path} on host '{host}' is a link to {real}, which is not allowed in containers of this pool"
            problems.append(Problem(path=field, message=message))
    return problems


def _log_images(rt: Runtime, image: str, images: Mapping[str, ContainerHost]) -> None:
    digests = {one.digest for one in images.values()}
    runtimes = sorted({one.runtime for one in images.values()})
    rt.log.info("Image %s (%s) with %s", image, ", ".join(sorted(digests)), " and ".join(runtimes))
    if len(digests) > 1:
        named = "; ".join(f"{host}: {one.digest}" for host, one in images.items())
        rt.log.warning("The hosts have different images %s: %s. Set environment.force_pull_image.", image, named)
