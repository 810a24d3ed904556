"""Job of an attempt: all that a launch needs, read from the store alone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.checkpoint_location import storage_root
from airflow_provider_dtrain.core.config.environment import Environment
from airflow_provider_dtrain.core.config.environment_source import source_of_environment
from airflow_provider_dtrain.core.config.inference import is_url
from airflow_provider_dtrain.core.config.secrets import MASK
from airflow_provider_dtrain.core.launch.containers import ContainerHost, ContainerRules, container_command
from airflow_provider_dtrain.core.launch.devices import shares_devices
from airflow_provider_dtrain.core.launch.plan import HostFacts, LaunchFacts, build_plans, device_views, rank_order
from airflow_provider_dtrain.core.launchers.launcher import launcher_of
from airflow_provider_dtrain.core.lifecycle.shard_blame import shard_failures
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.engine.attempt.device_numbers import frameworks_with_local_rank, uses_of_local_rank
from airflow_provider_dtrain.engine.attempt.max_runtime import max_runtime
from airflow_provider_dtrain.engine.attempt.required_modules import needed_modules, regular_files
from airflow_provider_dtrain.engine.copies.checkpoints import is_in_run_folder, trusted
from airflow_provider_dtrain.engine.copies.first_attempt import first_attempt
from airflow_provider_dtrain.errors import ConfigError, Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.core.config.environment_source import EnvironmentSource, ReadyEnvironment
    from airflow_provider_dtrain.core.launch.devices import HostDevices, VisibleDevices
    from airflow_provider_dtrain.core.launch.plan import NetworkChoice
    from airflow_provider_dtrain.engine.attempt.source_checkpoint import SourceCheckpoint
    from airflow_provider_dtrain.engine.copies.outputs import Carried
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hooks.settings import Settings
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.hosts.wire import Hello
    from airflow_provider_dtrain.store.records.trials import AttemptView, CheckpointView
    from airflow_provider_dtrain.store.store import Store

#: Folders of a run: one for the checkpoint to resume from, one for the weights to start from.
RESTORED, SOURCE = "checkpoints", "source"


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A tar.gz that a host may lack."""

    digest: str
    content: Callable[[], bytes]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt's configuration, archives and devices."""

    store_id: str
    config: ExperimentConfig
    #: Configuration without secrets, as the ranks may read it.
    document: Mapping[str, Any]
    archives: Mapping[str, Archive]
    #: host -> slot index -> device UUID, None for CPU slots
    devices: Mapping[str, Mapping[int, str | None]]
    #: host -> slot index -> name of its device, None for CPU slots
    device_names: Mapping[str, Mapping[int, str | None]] = field(default_factory=dict)
    #: host -> environment that its administrators set for its ranks
    variables: Mapping[str, Mapping[str, str]]
    #: Packages that the hosts install; None: the ranks use those of the interpreter.
    environment: EnvironmentSource | None = None
    #: host -> its environment, once it is ready there.
    environments: Mapping[str, ReadyEnvironment] = field(default_factory=dict)
    #: Modules that the ranks' interpreter must have.
    modules: tuple[str, ...]
    world_size: int
    settings: Settings
    #: What the pool allows in containers.
    rules: ContainerRules = ContainerRules()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: All secrets of the configuration, encrypted.
    sealed: bytes | None = field(default=None, repr=False)
    #: Variables of the ranks whose values are secrets. The stored record of a launch has them masked.
    private: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint_source: CheckpointView | None = None
    #: Checkpoint whose weights a trial without a checkpoint of its own starts from.
    weights_source: SourceCheckpoint | None = None
    #: Outputs of a plain script from earlier attempts.
    carried: Carried | None = None
    #: Shard of a batch inference -> failures of earlier attempts that were blamed on it.
    shard_failures: Mapping[int, int] = field(default_factory=dict)
    #: Units of training at which the searcher decides on the trial.
    rungs: tuple[int, ...] = ()
    #: Number of them, from the lowest, at which the searcher has decided on it.
    rungs_decided: int = 0
    #: Seconds until Airflow's execution_timeout; None = no limit.
    timeout_s: float | None = None

    def python(self, host: str) -> str | None:
        """Return the interpreter of the ranks on a host, or None for the supervisor's."""
        ready = self.environments.get(host)
        return self.config.environment.interpreter if ready is None else ready.python

    @property
    def setup(self) -> dict[str, str] | None:
        """Setup script of the environment, as the commands to a host name it."""
        path = self.config.environment.setup
        return (
            {"payload": self.archives["payloads"].digest, "path": path}
            if path and "payloads" in self.archives
            else None
        )

    @property
    def network_interface(self) -> str | None:
        """Network interface that the configuration names, or None to find it by real connections."""
        return None if self.config.network_interface == "auto" else self.config.network_interface

    @property
    def port_range(self) -> list[int] | None:
        """Ports that a firewall leaves open between the hosts."""
        return list(self.config.port_bounds) if self.config.port_bounds else None

    @property
    def shared_path(self) -> str | None:
        """Checkpoint folder that all hosts must share, or None for a bucket or the chief's run folder."""
        return shared_root(self.config)

    @property
    def has_gpus(self) -> bool:
        """True if a slot of the gang is a GPU."""
        return any(device is not None for devices in self.devices.values() for device in devices.values())

    @property
    def mounts(self) -> list[dict[str, str]]:
        """Folders that each host must have below both paths, because ranks run without containers."""
        return [
            {"host_path": mount.host_path, "container_path": mount.container_path} for mount in self.config.bind_mounts
        ]

    def visible_devices(self, view: AttemptView) -> dict[str, HostDevices]:
        """Return the devices that the ranks on each host see."""
        return device_views(Placement(view.placement), self.devices, self._visible_devices)

    @property
    def _visible_devices(self) -> VisibleDevices:
        """Setting in effect: a launcher on a host sees the devices of all ranks there, and so do its ranks."""
        return "all" if self.config.is_per_host else self.config.resources.visible_devices

    def local_rank_uses(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the places and the packages of the code that take LOCAL_RANK for the number of a device. Blocks."""
        if "payloads" not in self.archives:
            return (), ()
        payload = self.archives["payloads"].content()
        return uses_of_local_rank(payload), frameworks_with_local_rank(payload)

    def plan(
        self,
        view: AttemptView,
        network: NetworkChoice,
        hellos: Mapping[str, Hello],
        images: Mapping[str, ContainerHost],
    ) -> dict[str, Any]:
        """Return the stored record of a launch: the hosts' plans, the rendezvous, boot ids and state folders.

        :param network: address of rank 0 and the hosts' interfaces
        :param hellos: host -> greeting of its channel. Another boot id later means that the host was restarted
        :param images: host -> the image on it; {}: the ranks run without containers
        """
        placement = Placement(view.placement)
        plans = build_plans(placement, self._facts(view, network))
        for plan in plans.values():
            plan["env"] |= dict.fromkeys(self.private, MASK)
        for host, image in images.items():
            plans[host]["container"] = self._container(view, image)
        context = self.context(view)
        master = {"host": rank_order(placement)[0], "address": network.master_addr, "port": None}
        boots = {host: hello.boot_id for host, hello in hellos.items()}
        folders = {host: hello.state_dir for host, hello in hellos.items()}
        return {"plans": plans, "context": context, "master": master, "boots": boots, "state_dirs": folders}

    def _container(self, view: AttemptView, image: ContainerHost) -> dict[str, Any]:
        assert view.run is not None
        argv = container_command(
            self.config,
            image,
            run=view.run,
            library=self.archives["libraries"].digest,
            has_gpus=self.has_gpus,
            storage=self.shared_path,
        )
        inside = [mount.container_path for mount in self.config.bind_mounts]
        return {
            "runtime": image.runtime,
            "argv": argv,
            "modules": list(self.modules),
            "folders": [path for path in inside if not path.startswith("/")],
        }

    def whole(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Return a host's plan of the stored record with the private variables, as the host gets it."""
        return {**plan, "env": {**plan["env"], **self.private}}

    def _facts(self, view: AttemptView, network: NetworkChoice) -> LaunchFacts:
        assert view.run is not None
        assert view.token is not None
        return LaunchFacts(
            run=view.run,
            store=self.store_id,
            token=view.token,
            launch=uuid.uuid4().hex,
            argv=self.config.command,
            is_per_host=self.config.is_per_host,
            hosts={
                host: HostFacts(
                    devices=devices,
                    python=self.python(host),
                    environment=self.environments[host].digest if host in self.environments else None,
                    variables=self.variables.get(host, {}),
                )
                for host, devices in self.devices.items()
            },
            visible_devices=self._visible_devices,
            network=network,
            setup=self.config.environment.setup,
            warm_idle_s=self.config.warm_idle if self.config.warm_start else None,
            private=self.private,
            variables={**self.config.environment.variables, **self.private},
            payload=self.archives["payloads"].digest if "payloads" in self.archives else None,
            library=self.archives["libraries"].digest,
            port_range=self.config.port_bounds,
            grace_s=self.settings.kill_grace_s,
            orphan_timeout_s=self.settings.orphan_timeout_s,
            timeout_s=self.timeout_s,
            log_limit_bytes=self.settings.log_limit_bytes,
            sampling_interval_s=self.config.profiling.sampling_interval_s if self.config.profiling.enabled else 0,
            has_cpu_slots=all(device is None for devices in self.devices.values() for device in devices.values()),
        )

    def _checkpoint_dir(self, view: AttemptView) -> str | None:
        """Return the trial's folder on shared storage, or None for the chief's run folder."""
        root = shared_root(self.config)
        return f"{root.rstrip('/')}/{_own_folder(view)}" if root else None

    def _checkpoint_url(self, view: AttemptView) -> str | None:
        """Return the trial's URL in the bucket, or None when checkpoints go to a folder."""
        root = bucket_url(self.config)
        return f"{root}/{_own_folder(view)}" if root else None

    def send_checkpoint(self, link: HostLink, run: str) -> None:
        """Send the checkpoint that the trial starts from to the run's folder on the chief's host. Blocks.

        A checkpoint that the host can read where it lies is not sent.
        """
        from airflow_provider_dtrain.engine.copies.checkpoints import send

        own = self.checkpoint_source
        weights = self.weights_source
        if own is not None and own.copy_url is not None:
            send(link, run, RESTORED, Path(own.copy_url), trusted(own).name)
        if weights is not None and weights.is_sent:
            send(link, run, SOURCE, Path(weights.where), weights.name)

    def _restored_path(self) -> str | None:
        """Return the checkpoint's path as seen from the work folder of the run, where the ranks start."""
        source = self.checkpoint_source
        if source is None:
            return None
        place = trusted(source)
        return f"../{RESTORED}/{place.name}" if source.copy_url else place.path

    def _source_path(self) -> str | None:
        source = self.weights_source
        if source is None:
            return None
        return f"../{SOURCE}/{source.name}" if source.is_sent else source.where

    def context(self, view: AttemptView) -> dict[str, Any]:
        """Return the values of the trial. Each reaches the ranks through this document alone."""
        context = {
            "trial_id": view.trial_id,
            "trial_number": view.trial_number,
            "experiment": view.experiment,
            "experiment_id": view.experiment_id,
            "attempt": view.number,
            "max_restarts": view.max_restarts,
            "hparams": dict(view.hparams),
            "seed": view.seed,
            "config": dict(self.document),
            "latest_checkpoint": self._restored_path(),
            "source_checkpoint": self._source_path(),
            "checkpoint_dir": self._checkpoint_dir(view),
            "checkpoint_url": self._checkpoint_url(view),
            "rungs": list(self.rungs),
            "rungs_decided": self.rungs_decided,
            "shares_devices": shares_devices(self.visible_devices(view)),
        }
        if self.config.inference is not None:
            context["shard_failures"] = {str(shard): times for shard, times in self.shard_failures.items()}
        return context


def _own_folder(view: AttemptView) -> str:
    """Return the folder of a trial's checkpoints below a root, a new one for each set of hyperparameters."""
    draw = f"-draw-{view.draw}" if view.draw else ""
    return f"experiment-{view.experiment_id}/trial-{view.trial_id}{draw}"


def shared_root(config: ExperimentConfig) -> str | None:
    """Return the checkpoint folder that all hosts share, or None when each run has its own."""
    root = storage_root(config.checkpoint_storage.model_dump(mode="json"))
    return root if root is not None and "://" not in root else None


def bucket_url(config: ExperimentConfig) -> str | None:
    """Return the URL below which checkpoints go, or None when they go to a folder."""
    root = storage_root(config.checkpoint_storage.model_dump(mode="json"))
    return root if root is not None and "://" in root else None


def storage_modules(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the modules that the ranks need for the configured checkpoint storage."""
    from airflow_provider_dtrain.train.files.file_systems import PROTOCOLS

    found = PROTOCOLS.get(str(config.checkpoint_storage.type))
    return (found[1],) if found and config.checkpoint_policy != "none" else ()


def optimization_modules(config: ExperimentConfig, slots: int) -> tuple[str, ...]:
    """Return the modules that the ranks need for the configured optimizations."""
    # PyTorch takes the first directions of powersgd from NumPy's random numbers.
    return ("numpy",) if slots > 1 and config.optimizations.gradient_compression == "powersgd" else ()


def launcher_modules(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the module of the launcher that the command of the configuration starts."""
    launcher = launcher_of(config.command)
    return () if launcher is None else (launcher.program.module.partition(".")[0],)


def inference_modules(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the modules that the ranks need for the inputs and outputs of a batch inference."""
    from airflow_provider_dtrain.train.files.file_systems import PROTOCOLS

    section = config.inference
    if section is None:
        return ()
    inputs = section.inputs
    found = {"pyarrow"}
    if inputs is not None and inputs.format == "images":
        found.add("PIL")
    of_scheme = {**dict(PROTOCOLS.values()), "s3a": "s3fs", "gs": "gcsfs", "az": "adlfs"}
    for path in (section.outputs.path, *((inputs.path or ()) if inputs is not None else ())):
        if is_url(path):
            module = of_scheme.get(path.partition("://")[0])
            found.update({"fsspec", module} if module else {"fsspec"})
    return tuple(sorted(found))


async def job_of(rt: Runtime, view: AttemptView) -> Job:
    """Return the job of an attempt, with the seconds that are left of its limits."""
    left_s = rt.deadline - time.time() if rt.deadline is not None else None
    job = await rt.db(load_job, rt.store, view, rt.settings, timeout_s=left_s)
    if (limit := max_runtime(view, job.config)) is not None:
        job = replace(job, timeout_s=max(1.0, min(limit[1] - time.monotonic(), left_s or limit[0])))
    return job


def load_job(store: Store, view: AttemptView, settings: Settings, *, timeout_s: float | None = None) -> Job:
    """Return the job of an attempt. Blocks: reads the store and packs the library.

    :raises ConfigError: the stored configuration is not valid for this version
    """
    from airflow_provider_dtrain.hooks.secrets import as_variables, private_variables
    from airflow_provider_dtrain.hosts.payload import library
    from airflow_provider_dtrain.store.configs import model_of

    stored = store.configs.get(view.config_id)
    config = model_of(stored)
    packed = library()
    archives = {"libraries": Archive(digest=packed.digest, content=lambda: packed.content)}
    if view.payload is not None:
        digest = view.payload
        archives["payloads"] = Archive(digest=digest, content=lambda: store.payloads.get(digest))
    needed = _needed(store, tuple(config.command), view.payload) if view.payload else ()
    environment = _environment(store, config.environment.model_dump_json(), view.payload) if view.payload else None
    hosts = {name: store.hosts.get(name) for name in view.placement}
    own = _restart_from(store, view)
    return Job(
        store_id=store.store_id,
        config=config,
        document=stored.document,
        archives=archives,
        devices={name: {slot.index: slot.device for slot in host.slots} for name, host in hosts.items()},
        device_names={
            name: {slot.index: None if slot.device is None else slot.device_name for slot in host.slots}
            for name, host in hosts.items()
        },
        variables={name: host.variables or {} for name, host in hosts.items()},
        environment=environment,
        modules=(
            *needed,
            *storage_modules(config),
            *optimization_modules(config, view.slots),
            *inference_modules(config),
            *launcher_modules(config),
        ),
        world_size=max(1, view.slots),
        settings=settings,
        rules=store.pools.get(view.pool).containers,
        secrets=as_variables(stored.secrets),
        sealed=stored.secrets,
        private=private_variables(stored.secrets),
        checkpoint_source=own,
        weights_source=source_of(store, config, stored.secrets) if own is None else None,
        shard_failures=_shard_failures(store, view) if config.inference is not None else {},
        rungs=_rungs(store, view),
        rungs_decided=_rungs_decided(store, view),
        timeout_s=timeout_s,
    )


@lru_cache(maxsize=64)
def _needed(store: Store, command: tuple[str, ...], digest: str) -> tuple[str, ...]:
    # The trials of a search share command and code.
    return needed_modules(command, store.payloads.get(digest))


@lru_cache(maxsize=64)
def _environment(store: Store, section: str, digest: str) -> EnvironmentSource | None:
    # The trials of a search share configuration and code.
    environment = Environment.model_validate_json(section)
    if environment.requirements is None:
        return None
    files = regular_files(store.payloads.get(digest))
    found, problems = source_of_environment(environment, files.get, files)
    if problems:
        raise ConfigError(problems)
    return found


def _shard_failures(store: Store, view: AttemptView) -> dict[int, int]:
    earlier = [one.failure for one in store.attempts.of_trial(view.trial_id) if one.number < view.number]
    return shard_failures(earlier)


def _rungs(store: Store, view: AttemptView) -> tuple[int, ...]:
    if view.search_id is None:
        return ()
    return tuple(store.searches.get(view.search_id).rungs.get(view.bracket, ()))


def _rungs_decided(store: Store, view: AttemptView) -> int:
    if view.search_id is None:
        return 0
    return max((entry.rung + 1 for entry in store.searches.decisions(view.trial_id)), default=0)


def source_of(store: Store, config: ExperimentConfig, sealed: bytes | None) -> SourceCheckpoint | None:
    """Return the source checkpoint that a configuration names, or None. Blocks.

    :param sealed: the configuration's secrets
    :raises ConfigError: the checkpoint does not exist
    """
    from airflow_provider_dtrain.engine.attempt.source_checkpoint import resolve, source_field

    def is_checkpoint(url: str) -> bool:
        from airflow_provider_dtrain.hooks.secrets import storage_config_now
        from airflow_provider_dtrain.train.files.file_systems import file_system

        try:
            return bool(file_system(url, storage_config_now(config, sealed)).exists(f"{url}/metadata.json"))
        except Exception as error:
            message = f"the checkpoint at {url} cannot be read from this machine: {error}"
            raise ConfigError([Problem(path=source_field(config)[0], message=message)]) from error

    return resolve(store, config, shared=shared_root(config), is_checkpoint=is_checkpoint)


def _restart_from(store: Store, view: AttemptView) -> CheckpointView | None:
    """Return the latest checkpoint of earlier attempts that the next chief can read."""
    # Checkpoints of rejected hyperparameters do not fit the present ones.
    first = first_attempt(store, view)
    found = [c for c in store.checkpoints.of_trial(view.trial_id) if first <= c.attempt < view.number]
    usable = [c for c in found if (c.copy_url and Path(c.copy_url).is_dir()) or not is_in_run_folder(c)]
    return max(usable, key=lambda c: (c.attempt, c.step, c.checkpoint_id), default=None)
