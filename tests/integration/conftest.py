"""Fixtures: an Airflow with hosts, an engine on this machine, and shorter periods."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.lifecycle import after_failure
from airflow_provider_dtrain.engine.attempt import graceful_stop, queue_wait, restarts, runner
from airflow_provider_dtrain.engine.session import runtime
from airflow_provider_dtrain.engine.upkeep import recovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from testbed.netns import NamespaceHosts
from testbed.stores import new_sqlite
from tests.support.bucket import Bucket, s3_server
from tests.support.cluster import Cluster
from tests.support.engines import Engine, register

ROOT = Path(__file__).parents[2]
_SEARCH = ("hyperparameters", "searcher.name", "decision_timeout")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An Airflow with our DAGs, three hosts with separate homes, and two hosts with a shared home.

    To start it takes 40 s of CPU: all modules that need a scheduler use the same one.
    """
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    for folder in (ROOT / "dags", ROOT / "tests" / "jobs"):
        shutil.copytree(folder, dags, dirs_exist_ok=True)
    # An asset starts it, so no DAG run can name one of the pools.
    continuous = dags / "dtrain_continuous.py"
    continuous.write_text(continuous.read_text().replace('"pool": Param(None', '"pool": Param("nfs"'))
    with NamespaceHosts(count=3, slots=2) as own, NamespaceHosts(count=2, slots=2, shared_home=True) as nfs:
        cluster = Cluster(home, dags, {"gpus": own, "nfs": nfs})
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket of a server that the module starts."""
    with s3_server() as found:
        yield found


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("HOME", str(tmp_path))
    options = dataclasses.replace(
        settings(),
        sql_alchemy_conn=new_sqlite(tmp_path / "dtrain.db"),
        checkpoint_dir=tmp_path / "checkpoints",
        kill_grace_s=2.0,
    )
    hook = DtrainHook(options)
    hook.links.close_all()
    register(hook, tmp_path / "state")
    yield Engine(hook)
    hook.links.close_all()


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the engine's periods for control requests, background recovery and retries to fractions of a second."""
    monkeypatch.setattr(runtime, "CONTROL_CHECK_S", 0.2)
    monkeypatch.setattr(queue_wait, "PAUSED_POLL_S", 0.2)
    monkeypatch.setattr(graceful_stop, "STOP_AGAIN_S", 0.5)
    monkeypatch.setattr(runner, "RETAKE_POLL_S", 0.1)
    monkeypatch.setattr(recovery, "RECOVERY_EVERY_S", 0.5)
    monkeypatch.setattr(recovery, "RECOVERY_BUSY_EVERY_S", 0.5)
    monkeypatch.setattr(after_failure, "BACK_OFF_FIRST_S", 0.1)
    monkeypatch.setattr(after_failure, "PLATFORM_FIRST_S", 0.1)
    monkeypatch.setattr(restarts, "FENCE_AGAIN_S", 0.5)


@pytest.fixture
def searchers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow searchers in configurations, should they be listed as unsupported."""
    module = importlib.import_module("airflow_provider_dtrain.core.config.unsupported")
    monkeypatch.setattr(module, "UNSUPPORTED", tuple(row for row in module.UNSUPPORTED if row[0] not in _SEARCH))
