"""Fixtures: ``pytest_plugins = ["testbed.slurm.plugin"]`` in a test module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.netns import NamespaceHosts
from testbed.slurm import accounting, programs
from testbed.slurm.cluster import SlurmCluster

#: Other accounts enter these folders, unlike those of pytest. The name has the pid of the tests.
_PARENT, _PREFIX = Path("/var/tmp"), "dtrain-slurm-tests-"
#: Debian suite of the later version.
_LATER = "trixie"


@pytest.fixture(scope="session")
def slurm_clusters() -> Iterator[Callable[..., SlurmCluster]]:
    """Factory of running clusters, with the arguments of ``SlurmCluster``. All end with the tests."""
    _remove_stale()
    made: list[SlurmCluster] = []

    def make(*, root: Path | None = None, hosts: NamespaceHosts | None = None, **options: Any) -> SlurmCluster:
        if reason := programs.missing(root):
            pytest.skip(f"no Slurm cluster: {reason}")
        folder = None if hosts else Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_PARENT))
        if folder:
            folder.chmod(0o755)
        made.append(SlurmCluster(folder, root=root, hosts=hosts, **options))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="session")
def slurm_cluster(slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Four nodes with 8 CPUs and two GPUs each, and one partition. Tests leave it idle."""
    return slurm_clusters()


@pytest.fixture(scope="session")
def later_slurm() -> Path:
    """The folder of a later version of Slurm, downloaded for the first test that needs it."""
    folder = programs.default_root(_LATER)
    try:
        programs.make_root(_LATER, folder)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no Slurm of Debian {_LATER}: {error}")
    return folder


@pytest.fixture(scope="session")
def slurm_accounting() -> Path:
    """The folder of slurmdbd and its database, downloaded for the first test that needs it."""
    folder = accounting.default_root()
    try:
        accounting.make_root(folder)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no slurmdbd: {error}")
    return folder


def _remove_stale() -> None:
    """Stop the clusters of tests that were killed."""
    for folder in _PARENT.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            SlurmCluster(folder).stop()
