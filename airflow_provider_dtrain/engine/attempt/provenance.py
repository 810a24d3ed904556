"""Provenance of an attempt: what its ranks are made of, recorded at their launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.event_log import RUNTIME_LIMIT

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.launch.containers import ContainerHost
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

_OF_INTERPRETER: Final = ("python", "executable", "cuda")


async def record_launch(
    rt: Runtime,
    view: AttemptView,
    job: Job,
    found: Mapping[str, Mapping[str, Any]],
    images: Mapping[str, ContainerHost],
) -> None:
    """Store the lock file, and for each host its devices, driver and image, and without an image its interpreter.

    :param found: host -> answer to ``preflight``
    :param images: host -> the image on it; {}: the ranks run without containers
    """
    hosts = {}
    for host, answer in found.items():
        devices = {str(slot): job.device_names[host].get(slot) for slot in view.placement[host]}
        image = images.get(host)
        hosts[host] = {
            "devices": devices,
            "driver": _text(answer.get("driver")),
            "image": None if image is None else image.digest,
            **(_interpreter(answer) if image is None else {}),
        }
    source = job.environment
    lock = None if source is None else {"path": source.path, "digest": source.digest}
    await rt.db(rt.store.provenance.set_launch, rt.attempt_id, rt.watch, lock, hosts)


async def record_images(rt: Runtime, prepared: Mapping[str, Mapping[str, Any]]) -> None:
    """Store the interpreters in containers, which only run once the hosts are prepared.

    :param prepared: host -> answer to ``prepare``
    """
    hosts = {host: _interpreter(answer["image"]) for host, answer in prepared.items() if answer.get("image")}
    if hosts:
        await rt.db(rt.store.provenance.add_facts, rt.attempt_id, rt.watch, hosts)


def _interpreter(answer: Mapping[str, Any]) -> JsonObject:
    """Return the facts about the interpreter of ranks in an answer of a host."""
    packages = answer.get("packages")
    if packages is not None:
        packages = {escaped(name): _text(version) for name, version in packages.items()}
    return {**{name: _text(answer.get(name)) for name in _OF_INTERPRETER}, "packages": packages}


def _text(value: str | None) -> str | None:
    return None if value is None else escaped(value[:RUNTIME_LIMIT])
