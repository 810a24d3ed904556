"""Facts about the trial under the names of ``determined.get_cluster_info()``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.train.determined.refusals import refuse
from airflow_provider_dtrain.train.environment import RankEnvironment

_LOGIN = "There is no master: 'dtrain login' and the Python client read what the API offers."
_ADDRESS = "Rank 0 is at MASTER_ADDR, and core_context.distributed.cross_size is the number of hosts."

#: Name of Determined -> remedy.
_INSTEAD = {
    **dict.fromkeys(("master_url", "session_token", "master_cert_name", "master_cert_file", "cluster_id"), _LOGIN),
    "agent_id": "The pages show the host of each rank; socket.gethostname() is its name for itself.",
    **dict.fromkeys(("container_addrs", "container_slot_counts"), _ADDRESS),
}


@dataclass(frozen=True)
class TrialInfo:
    """The trial of this process."""

    trial_id: int
    experiment_id: int
    #: Seed of the trial, the same on all ranks.
    trial_seed: int
    hparams: Mapping[str, Any]
    #: The effective configuration, with its secrets.
    _config: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ClusterInfo:
    """The run of this process."""

    trial: TrialInfo
    #: Checkpoint to start from, for ``checkpoint.restore_path``; None for a trial that begins anew. It is the trial's
    #: own, or ``searcher.source_checkpoint``, which may be of another trial.
    latest_checkpoint: str | None
    #: Local ranks of this host.
    slot_ids: tuple[int, ...]
    #: UUIDs of the GPUs that this rank sees: those of all ranks of this host, unless each sees its own only.
    gpu_uuids: tuple[str, ...]
    #: Number of this host in the gang.
    container_rank: int
    #: Name of the trial, and of this attempt.
    task_id: str
    allocation_id: str
    task_type: str = "TRIAL"

    @property
    def user_data(self) -> Mapping[str, Any]:
        """Free-form map ``data`` of the configuration."""
        return self.trial._config.get("data") or {}

    def __getattr__(self, name: str) -> Any:
        refuse("'ClusterInfo' object", "get_cluster_info()", name, _INSTEAD)


def get_cluster_info() -> ClusterInfo | None:
    """Return facts about the trial of this process, or None outside a trial."""
    env = RankEnvironment.read()
    if not env.on_cluster:
        return None
    start = env.latest_checkpoint or env.source_checkpoint
    trial = TrialInfo(
        trial_id=env.trial_id or 0,
        experiment_id=env.experiment_id or 0,
        trial_seed=env.seed or 0,
        hparams=dict(env.hparams),
        _config=env.config,
    )
    return ClusterInfo(
        trial=trial,
        latest_checkpoint=str(start) if start is not None else None,
        slot_ids=tuple(range(env.local_world_size)),
        gpu_uuids=tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))),
        container_rank=env.group_rank,
        task_id=f"trial-{trial.trial_id}",
        allocation_id=str(env.run),
    )
