"""Differences between what trials, or experiments, were made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.config.leaves import leaves
from airflow_provider_dtrain.core.config.secrets import MASK, mask
from airflow_provider_dtrain.core.fact_differences import Facts, fact_differences
from airflow_provider_dtrain.resources.provenance import Differences
from airflow_provider_dtrain.store.queries.experiments import trial_of_experiment
from airflow_provider_dtrain.store.queries.provenance import provenance_of
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.resources.provenance import GitState, HostProvenance, TrialProvenance
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.store import Store

_SEED: Final = "reproducibility.experiment_seed"
_NONE: Final = "none"


def trial_differences(store: Store, rights: Rights, trial_ids: Sequence[int]) -> Differences:
    """Return in what trials differ, and what of them is not known.

    :raises NotFoundError: there is none with one of the ids that the user may read
    """
    things = []
    for trial_id in trial_ids:
        trial = readable_trial(store, rights, trial_id)
        document = {**mask(store.configs.get(trial.config_id).document), "hyperparameters": dict(trial.hparams)}
        things.append(_facts(provenance_of(store, rights, trial_id), document, trial_seed=trial.seed))
    return _compared(trial_ids, things)


def experiment_differences(store: Store, rights: Rights, experiment_ids: Sequence[int]) -> Differences:
    """Return in what experiments differ. The hyperparameters of their trials are not compared, but their space is.

    :raises NotFoundError: there is none with one of the ids that the user may read, or it has no trial
    """
    things, chosen = [], []
    for experiment_id in experiment_ids:
        trial_id = trial_of_experiment(store, rights, experiment_id)
        provenance = provenance_of(store, rights, trial_id)
        things.append(_facts(provenance, mask(store.configs.get(provenance.config_id).document)))
        chosen.append(trial_id)
    return _compared(chosen, things)


def _compared(trial_ids: Sequence[int], things: list[dict[str, Facts]]) -> Differences:
    codes = [thing["code"] for thing in things]
    if None not in codes and codes.count(codes[0]) == len(codes):
        # The same digest has the same files, also for a user who may not read them.
        for thing in things:
            thing["files"] = {}
    rows, same = fact_differences(things)
    return Differences(
        trials=list(trial_ids),
        rows=rows,
        same=[subject for subject in same if subject != "files"],
    )


def _facts(found: TrialProvenance, document: Mapping[str, Any], *, trial_seed: int | None = None) -> dict[str, Facts]:
    """Return the facts of a trial by subject.

    :param document: configuration, secrets masked. Two secrets may be equal or not
    :param trial_seed: None = the trial stands for its experiment
    """
    values = {path: None if _is_masked(value) else json.dumps(value) for path, value in leaves(document)}
    seeds = {"experiment": values.pop(_SEED)} if _SEED in values else {}
    if trial_seed is not None:
        seeds["trial"] = str(trial_seed)
    return {
        "configuration": values,
        "seed": seeds,
        "code": {"": found.code or _NONE},
        "files": found.files if found.code is not None else {},
        "git": _git(found.git),
        "bundle": None if found.bundle is None else {"name": found.bundle.name, "version": found.bundle.version},
        "data": None if found.data is None else {"manifest": found.data.sha256},
        **(_launched(found) if found.is_launched else dict.fromkeys(_OF_LAUNCH)),
    }


def _is_masked(value: object) -> bool:
    return isinstance(value, str) and (value == MASK or value.endswith(f"={MASK}"))


def _git(state: GitState) -> Facts:
    if state.commit is None:
        return None
    return {"commit": state.commit, "state": None if state.is_clean is None else "clean" if state.is_clean else "dirty"}


#: Subjects that are known from the launch of an attempt on.
_OF_LAUNCH: Final = (
    *("lock file", "image", "interpreter", "packages", "PyTorch", "CUDA", "cuDNN", "NCCL"),
    *("driver", "devices", "hosts"),
)


def _launched(found: TrialProvenance) -> dict[str, Facts]:
    hosts = found.hosts
    packages = _packages(found)
    has_gpus = any(name is not None for host in hosts for name in host.devices.values())
    slots = "; ".join(f"{host.host}: {', '.join(host.devices) or '-'}" for host in hosts)
    values: dict[str, Facts] = {
        "lock file": {"": _NONE} if found.lock is None else {"path": found.lock.path, "digest": found.lock.digest},
        "image": {"": _joined(host.image or _NONE for host in hosts)},
        "interpreter": _interpreter(found),
        "packages": packages,
        "PyTorch": {"": _version(found, "torch", packages, "torch")},
        "CUDA": {"": _cuda(found, packages)},
        "cuDNN": {"": _version(found, "cudnn", packages, "nvidia-cudnn")},
        "NCCL": {"": _version(found, "nccl", packages, "nvidia-nccl")},
        "driver": {"": _joined(host.driver for host in hosts) if has_gpus else _NONE},
        "devices": {"": _device_text(hosts)},
        "hosts": {"": slots},
    }
    return {subject: values[subject] for subject in _OF_LAUNCH}


def _joined(values: Iterable[str | None]) -> str | None:
    """Return the values of all hosts in one text, None if one is not known or there are none."""
    found = set(values)
    return None if None in found or not found else " | ".join(sorted(map(str, found)))


def _cuda(found: TrialProvenance, packages: Facts) -> str | None:
    """Return the CUDA for which PyTorch was built: as ranks loaded it, else as its files name it."""
    loaded = {one.cuda for one in found.runtimes} - {None}
    if loaded or packages is None:
        return _joined(loaded)
    return _joined(host.cuda for host in found.hosts) if "torch" in packages else _NONE


def _interpreter(found: TrialProvenance) -> Facts:
    """Return version and path of the interpreters: those that ranks reported, else those that the hosts found."""
    paths = _joined(host.other_interpreter or host.executable for host in found.hosts)
    versions = _joined(one.python for one in found.runtimes) or _joined(
        None if host.other_interpreter is not None else host.python for host in found.hosts
    )
    return {"version": versions, "path": paths}


def _packages(found: TrialProvenance) -> Facts:
    """Return the packages of all hosts, None if those of one are not known."""
    merged: dict[str, set[str | None]] = {}
    for host in found.hosts:
        listed = found.packages.get(host.packages or "")
        if listed is None or host.other_interpreter is not None:
            return None
        for name, version in listed.items():
            merged.setdefault(name, set()).add(version)
    return {name: _joined(versions) for name, versions in merged.items()}


def _version(found: TrialProvenance, reported: str, packages: Facts, package: str) -> str | None:
    """Return the version of a library: that which ranks loaded, else that of its package.

    Builds of PyTorch may contain cuDNN and NCCL without a package of their own.
    """
    loaded = {getattr(one, reported) for one in found.runtimes} - {None}
    if loaded:
        return _joined(loaded)
    if packages is None:
        return None
    # NVIDIA's packages end with the CUDA that they are for, e.g. nvidia-nccl-cu12.
    versions = [version for name, version in packages.items() if name.partition("-cu")[0] == package]
    if versions:
        return _joined(versions)
    needs_none = package == "torch" or "torch" not in packages or {host.cuda for host in found.hosts} == {_NONE}
    return _NONE if needs_none else None


def _device_text(hosts: Iterable[HostProvenance]) -> str:
    names = Counter(name or "CPU slot" for host in hosts for name in host.devices.values())
    return ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or _NONE
