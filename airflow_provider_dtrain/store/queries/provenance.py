"""Provenance of trials: what they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.event_log import RUNTIME_FIELDS
from airflow_provider_dtrain.resources.provenance import (
    DagBundle,
    DataManifest,
    GitState,
    HostProvenance,
    LockFile,
    RankRuntime,
    TrialProvenance,
)
from airflow_provider_dtrain.store.queries.ranks import attempt_of
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.provenance import Launch
    from airflow_provider_dtrain.store.records.trials import RankView
    from airflow_provider_dtrain.store.store import Store


def provenance_of(store: Store, rights: Rights, trial_id: int, *, attempt: int | None = None) -> TrialProvenance:
    """Return what a trial was made of. The names of its files are for users who may read the code of its DAG.

    :param attempt: its number; None = the latest
    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt
    """
    trial = readable_trial(store, rights, trial_id)
    view = attempt_of(store, trial, attempt)
    source = store.provenance.source(trial_id)
    launch = store.provenance.launch(view.attempt_id)
    runtimes = _runtimes(store.events.ranks(view.attempt_id))
    code = source.get("code")
    hosts = [] if launch is None else _hosts(launch, runtimes)
    lists = store.provenance.manifests([one for one in (code, *(host.packages for host in hosts)) if one is not None])
    may_read_code = rights.may_read_code(trial.key.dag_id)
    return TrialProvenance(
        trial_id=trial_id,
        attempt=view.number,
        config_id=trial.config_id,
        seed=trial.seed,
        code=code,
        files=lists.get(code) if code is not None and may_read_code else None,
        git=GitState(**source["git"]) if source.get("git") else GitState(problem="it was not recorded"),
        bundle=DagBundle(**source["bundle"]) if source.get("bundle") else None,
        is_launched=launch is not None,
        lock=LockFile(**launch.lock) if launch is not None and launch.lock is not None else None,
        hosts=hosts,
        packages={digest: packages for digest, packages in lists.items() if digest != code},
        runtimes=runtimes,
        data=_data(trial.result),
    )


def _hosts(launch: Launch, runtimes: Sequence[RankRuntime]) -> list[HostProvenance]:
    names = ("devices", "driver", "image", "python", "executable", "cuda", "packages")
    found = []
    for host, facts in sorted(launch.hosts.items()):
        probed = facts.get("executable")
        used = {one.executable for one in runtimes if one.host == host} - {None, probed}
        values: dict[str, Any] = {name: facts.get(name) for name in names}
        found.append(HostProvenance(host=host, **values, other_interpreter=min(map(str, used), default=None)))
    return found


def _runtimes(ranks: Sequence[RankView]) -> list[RankRuntime]:
    """Return the reports of ranks, equal ones of one host together."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for rank in ranks:
        if rank.runtime is not None:
            found.setdefault((rank.host, *(rank.runtime.get(name) for name in RUNTIME_FIELDS)), []).append(rank.rank)
    return [
        RankRuntime(ranks=numbers, host=host, **dict(zip(RUNTIME_FIELDS, values, strict=True)))
        for (host, *values), numbers in found.items()
    ]


def _data(result: Mapping[str, Any] | None) -> DataManifest | None:
    manifest = (result or {}).get("manifest")
    if not isinstance(manifest, Mapping):
        return None
    return DataManifest(location=manifest["location"], sha256=manifest["sha256"], rows=manifest["rows"])
