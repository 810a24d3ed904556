"""Provenance of trials: code, packages and devices that they were made of, and differences between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_dtrain.core.fact_differences import Difference


@dataclass(frozen=True, kw_only=True)
class GitState:
    """The folder of the code as git sees it, on the machine that submitted the code."""

    #: None: not known.
    commit: str | None = None
    #: The folder has no changed and no untracked file; None: not known.
    is_clean: bool | None = None
    #: Why it is not known.
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class DagBundle:
    """Airflow's bundle of the DAG that submitted the trial."""

    name: str
    #: None: the bundle has no versions.
    version: str | None


@dataclass(frozen=True, kw_only=True)
class LockFile:
    """A lock file from which hosts built the environment of the ranks."""

    path: str
    #: SHA-256 of the file, and of the wheels that were sent with the code.
    digest: str


@dataclass(frozen=True, kw_only=True)
class HostProvenance:
    """A host of the gang, as it was at the launch."""

    host: str
    #: Slot -> name of its device, None for a CPU slot.
    devices: Mapping[str, str | None]
    #: Of NVIDIA; None: the gang has no GPU there, or it is not known.
    driver: str | None
    #: Digest of the image of its container; None: the ranks ran without a container.
    image: str | None
    #: Version and path; None: not known.
    python: str | None
    executable: str | None
    #: Version for which PyTorch was built, ``none`` for a build without CUDA; None: not known.
    cuda: str | None
    #: Digest of the list of its packages, the key in ``packages``; None: not known.
    packages: str | None
    #: Interpreter that a rank reported instead, whose packages are not known; None: no rank did.
    other_interpreter: str | None


@dataclass(frozen=True, kw_only=True)
class RankRuntime:
    """Report of ranks about themselves. Only ranks that use the training library report it."""

    ranks: list[int]
    host: str
    python: str | None
    executable: str | None
    torch: str | None
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    backend: str | None


@dataclass(frozen=True, kw_only=True)
class DataManifest:
    """Results that a batch inference has published."""

    location: str
    #: SHA-256 of the manifest, which names each file with its digest.
    sha256: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class TrialProvenance:
    """Parts that a trial was made of, as recorded at its submission and at the start of an attempt."""

    trial_id: int
    attempt: int
    config_id: int
    seed: int
    #: SHA-256 of the packed code; None: no code was sent.
    code: str | None
    #: Path -> SHA-256; None: not known, too many, or the user may not read the code.
    files: Mapping[str, str] | None
    git: GitState
    #: None: it was not submitted by a task that knows its bundle.
    bundle: DagBundle | None
    #: False: no launch has been recorded, so lock file, hosts and packages are not known.
    is_launched: bool
    #: None: the ranks used the packages of their interpreter.
    lock: LockFile | None
    hosts: list[HostProvenance]
    #: Digest -> name -> version; a version that is None is not known.
    packages: Mapping[str, Mapping[str, str | None]]
    runtimes: list[RankRuntime]
    #: None: the trial has published no manifest, so its data is not known.
    data: DataManifest | None


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Differences between trials or experiments. For an experiment stands its best trial, else its latest one."""

    #: Ids of the trials, in the order of the values.
    trials: list[int]
    rows: list[Difference]
    #: Subjects whose values are known and equal.
    same: list[str]
