"""Launch of a granted gang: preflight, payload, two-phase start."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.launch.devices import notices
from airflow_provider_dtrain.core.launch.plan import choose_network, connect_targets, rank_order
from airflow_provider_dtrain.core.launch.requirements import shortcoming
from airflow_provider_dtrain.core.lifecycle.timing import PEER_CONNECT_S, PREPARE_TIMEOUT_S
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.engine.attempt.containers import image_error, provide_images
from airflow_provider_dtrain.engine.attempt.environments import ready_environments
from airflow_provider_dtrain.engine.attempt.gang_check import check_gang
from airflow_provider_dtrain.engine.attempt.host_calls import on_all, send_archives
from airflow_provider_dtrain.engine.attempt.job import job_of
from airflow_provider_dtrain.engine.attempt.provenance import record_images, record_launch
from airflow_provider_dtrain.engine.copies.collector import send_known
from airflow_provider_dtrain.engine.copies.last import until_copied
from airflow_provider_dtrain.engine.copies.output_generations import send_outputs
from airflow_provider_dtrain.engine.copies.outputs import carried_to
from airflow_provider_dtrain.engine.session.runtime import Killed, answer
from airflow_provider_dtrain.engine.session.threads import in_launch_thread
from airflow_provider_dtrain.errors import (
    ConfigError,
    EnvironmentMissingError,
    HostError,
    HostProtocolError,
    HostRefusedError,
    ImageError,
    Problem,
)
from airflow_provider_dtrain.hooks.secrets import with_connection

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.launch.containers import ContainerHost
    from airflow_provider_dtrain.core.launch.plan import NetworkChoice
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView


async def launch(rt: Runtime, view: AttemptView) -> None:
    """Start the ranks of the attempt on all its hosts, or on none.

    Repeatable: a follower that takes over in the middle starts the same plan again and attaches.

    :param view: attempt that holds its slots
    :raises HostError: a host cannot be reached, refuses, or has no network path to another host
    :raises EnvironmentMissingError: a host lacks python, a module or a folder
    :raises ConfigError: the stored configuration is not valid for this version
    """
    job, links = await _begun(rt, view)
    record = view.plan
    if record is None:
        await _check_devices(rt, view, job)
        await on_all(links, lambda _, link: send_archives(link, job.archives))
        images: dict[str, ContainerHost] = {}
        if job.config.environment.is_contained:
            await until_copied(rt, _provide(rt, job, links, images), requests=(Killed,))
        if not images:
            job = replace(job, environments=await ready_environments(rt, job, links))
        await check_gang(rt, view, job, links)
        network, found = await _preflight(view, job, links, has_container=bool(images))
        await record_launch(rt, view, job, found, images)
        record = job.plan(view, network, {host: link.hello for host, link in links.items()}, images)
        await rt.db(rt.store.attempts.set_plan, rt.attempt_id, rt.watch, record)
    master = record["master"]
    job = replace(job, carried=await carried_to(rt, view))
    if any(one is not None for one in (job.checkpoint_source, job.weights_source, job.carried)):
        await until_copied(rt, _send_files(job, links, record["plans"]), requests=(Killed,))
    await send_known(rt, view, job.config, links[master["host"]])
    prepared = await on_all(links, lambda host, link: _prepare(job, link, record["plans"][host], record["context"]))
    await record_images(rt, prepared)
    port = master["port"] or prepared[master["host"]]["port"]

    async def go(_: str, link: HostLink) -> Any:
        return await answer(link, "go", run=view.run, master_addr=master["address"], master_port=port)

    await on_all(links, go)
    await rt.db(rt.store.attempts.set_running, rt.attempt_id, rt.watch)
    where = f"{master['address']}:{port}"
    rt.log.info("Started %d rank(s) on %d host(s), rendezvous %s", job.world_size, len(links), where)


async def _begun(rt: Runtime, view: AttemptView) -> tuple[Job, dict[str, HostLink]]:
    """Return the job and the links to its hosts. A new follower connects while it reads the job."""

    async def read() -> Job:
        job = await job_of(rt, view)
        return replace(job, secrets=await with_connection(job.config, job.secrets))

    hosts = dict.fromkeys(rank_order(Placement(view.placement)))
    reading = asyncio.ensure_future(read())
    connecting = asyncio.ensure_future(on_all(hosts, lambda host, _: rt.link(host, to_launch=True)))
    # An error of the job is raised after the connections as well, so that no action still runs then.
    await asyncio.gather(reading, connecting, return_exceptions=True)
    return reading.result(), connecting.result()


async def _provide(rt: Runtime, job: Job, links: Mapping[str, HostLink], images: dict[str, ContainerHost]) -> None:
    images.update(await provide_images(rt, job, links))


async def _check_devices(rt: Runtime, view: AttemptView, job: Job) -> None:
    """Log what differs from torchrun in the devices that ranks see, and refuse code that cannot work with it.

    :raises ConfigError: the code takes LOCAL_RANK for the number of a device, which is impossible on a host of the gang
    """
    devices = job.visible_devices(view)
    for notice in notices(devices):
        rt.log.warning("%s", notice)
    not_indexed = [host for host, one in devices.items() if not one.is_indexed]
    if not not_indexed:
        return
    places, frameworks = await rt.db(job.local_rank_uses)
    where = f"on host '{not_indexed[0]}', where each rank sees only its own device, number 0"
    if places:
        message = f"{', '.join(places[:5])} takes LOCAL_RANK for the number of a device, which does not exist {where}"
        if any(devices[host].has_mig for host in not_indexed):
            fix = "use device 0 of each rank, e.g. ctx.device, or hosts whose slots are whole GPUs"
            raise ConfigError([Problem(path="entrypoint", message=f"{message}; {fix}")])
        rt.log.warning("%s. Use device 0, or set resources.visible_devices to all.", message)
    elif frameworks:
        rt.log.warning(
            "%s may take LOCAL_RANK for the number of a device, which does not exist %s.", ", ".join(frameworks), where
        )


async def _preflight(
    view: AttemptView, job: Job, links: Mapping[str, HostLink], *, has_container: bool
) -> tuple[NetworkChoice, dict[str, JsonObject]]:
    """Check that the hosts can run the job, and return the network between them, and what each host found."""
    nonce = secrets.token_hex(16)
    several = len(links) > 1

    async def one(host: str, link: HostLink) -> Any:
        return await asyncio.gather(
            _check(link, view, job, has_container=has_container),
            _listen(link, job, nonce) if several else _nothing(),
        )

    try:
        answers = await on_all(links, one)
        listening = {host: answer[1] for host, answer in answers.items()}
        connects = await _connect(links, listening, nonce) if several else {}
        if several and job.shared_path is not None:
            await _check_shared(links, job.shared_path, nonce)
    finally:
        if several:
            closing = (answer(link, "net_close", nonce=nonce) for link in links.values())
            await asyncio.gather(*closing, return_exceptions=True)
    network = choose_network(list(links), listening, connects, network_interface=job.network_interface)
    return network, {host: answer[0] for host, answer in answers.items()}


async def _nothing() -> None:
    return None


async def _listen(link: HostLink, job: Job, nonce: str) -> dict[str, Any]:
    return await answer(link, "net_listen", nonce=nonce, port_range=job.port_range, interface=job.network_interface)


async def _connect(links: Mapping[str, HostLink], listening: Mapping[str, Any], nonce: str) -> dict[str, Any]:
    """Return the result of each host's connections to the other hosts."""
    targets = connect_targets(list(links), listening)

    async def one(host: str, link: HostLink) -> Any:
        asked: dict[str, Any] = {"nonce": nonce, "targets": targets[host], "timeout_s": PEER_CONNECT_S}
        return await answer(link, "net_connect", **asked)

    return await on_all(links, one)


async def _check(link: HostLink, view: AttemptView, job: Job, *, has_container: bool) -> JsonObject:
    """Return what the host found, or raise when it cannot run this configuration.

    :param has_container: interpreter, modules and folders are those of the image, which are checked in its container
    """
    slots = [{"index": index, "device": job.devices[link.host].get(index)} for index in view.placement[link.host]]
    asked: dict[str, Any] = {
        "python": None if has_container else job.python(link.host),
        "modules": [] if has_container else list(job.modules),
        "slots": slots,
        "mounts": [] if has_container else job.mounts,
        "setup": None if has_container else job.setup,
        "packages": not has_container,
    }
    found = await answer(link, "preflight", timeout_s=60.0, **asked)
    if found["python"] is None:
        raise EnvironmentMissingError(
            f"Host '{link.host}' has no interpreter {job.python(link.host)!r}. "
            "Install it there, or set environment.python to one that exists on every host."
        )
    modules = {name: found["modules"].get(name) for name in asked["modules"]}
    lock = job.environment.path if job.environment is not None else None
    if (message := shortcoming(found["executable"], found["python"], modules, lock)) is not None:
        raise EnvironmentMissingError(f"Host '{link.host}': {message}")
    if found["mounts"]:
        raise EnvironmentMissingError(
            f"Host '{link.host}': bind_mounts: {'; '.join(found['mounts'])}. Ranks run without containers: link "
            "container_path to host_path there (ln -s), or use host_path in the code and remove the entry."
        )
    for process in found["foreign"]:
        raise HostError(
            link.host,
            f"Host '{link.host}': GPU {process['device']} is in use by process {process['pid']} "
            f"({process['name']}) of user {process['user']} with {byte_size(process['memory_bytes'])}, "
            "which this store did not start. End it, or disable the slot.",
        )
    if found["problems"]:
        raise HostError(link.host, f"Host '{link.host}': " + "; ".join(found["problems"]))
    return found


async def _check_shared(links: Mapping[str, HostLink], path: str, nonce: str) -> None:
    """Raise unless every host of the gang sees the files that the other hosts write to checkpoint storage."""
    asked: dict[str, Any] = {"python": None, "modules": [], "slots": [], "shared_paths": [path], "nonce": nonce}

    async def one(host: str, link: HostLink) -> Any:
        return await answer(link, "preflight", timeout_s=60.0, **asked)

    written: dict[str, dict[str, Any]] = {}
    for host, found in (await on_all(links, one)).items():
        written[host] = _shared(host, found, path)
        if not written[host]["writable"]:
            raise HostError(host, f"Host '{host}': checkpoint_storage: " + "; ".join(found["problems"]))
    # Check again after every host has written its mark.
    seen = {host: set(_shared(host, found, path)["seen"]) for host, found in (await on_all(links, one)).items()}
    for reader in links:
        for writer in links:
            if written[writer]["self"] not in seen[reader]:
                raise HostError(
                    reader,
                    f"Host '{reader}' does not see in {path} what host '{writer}' wrote there: checkpoint_storage must "
                    "be one folder for all hosts. Mount the same file system there on both, or use s3, gcs or azure.",
                )


def _shared(host: str, found: Mapping[str, Any], path: str) -> dict[str, Any]:
    if path not in found["shared"]:
        raise HostProtocolError(host, f"Host '{host}' broke the protocol: 'preflight' did not report on {path}.")
    report: dict[str, Any] = found["shared"][path]
    return report


async def _send_files(job: Job, links: Mapping[str, HostLink], plans: Mapping[str, Any]) -> None:
    async def one(host: str, link: HostLink) -> None:
        run = plans[host]["run"]
        if (job.checkpoint_source is not None or job.weights_source is not None) and plans[host]["group_rank"] == 0:
            await in_launch_thread(job.send_checkpoint, link, run)
        if job.carried is not None:
            # Send them to every host, because a script may load its snapshot on each rank.
            await in_launch_thread(send_outputs, link, run, job.carried.name, job.carried.generation)

    await on_all(links, one)


async def _prepare(job: Job, link: HostLink, plan: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    if job.carried is not None:
        plan = {**plan, "carried": job.carried.name}
    documents: dict[str, Any] = {"plan": job.whole(plan), "context": context, "secrets": job.secrets}
    try:
        found = await answer(link, "prepare", timeout_s=PREPARE_TIMEOUT_S, **documents)
    except HostRefusedError as error:
        raise image_error(error) from error
    if (image := found.get("image")) is not None:
        message = shortcoming(image["executable"], image["python"], image["modules"])
        if message is not None:
            raise ImageError(f"Host '{link.host}': the image lacks what the ranks need: {message}")
    return found
