"""Shared set-up of all tests. Airflow reads its home on import, so this module sets the home first."""

from __future__ import annotations

import base64
import fcntl
import gc
import importlib
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog

# Collection of tests creates a million objects that stay, and a seventh of its time would be garbage collections.
gc.disable()
# Before they are imported: asserts in shared helpers show their values, too.
pytest.register_assert_rewrite("tests.support", "testbed")
importlib.import_module("tests.support.budgets").register_profiles()
for _name in [name for name in os.environ if name.startswith(("AIRFLOW_", "_AIRFLOW"))]:
    del os.environ[_name]
AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="dtrain-tests-"))
os.environ["AIRFLOW_HOME"] = str(AIRFLOW_HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
os.environ["AIRFLOW__CORE__FERNET_KEY"] = base64.urlsafe_b64encode(b"a key that is only for the tests").decode()
os.environ["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] = "False"
importlib.import_module("tests.support.statement_cache").share_compiled_statements()
_CPU_S = pytest.StashKey[float]()


def program(name: str) -> str | None:
    """Return the path of a system program. /usr/sbin and /sbin are searched for every user."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _why_no_netns() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "unshare", "sshd") if program(name) is None]
    return f"missing: {', '.join(missing)}" if missing else None


def _why_no_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "PyTorch is not installed"


def _why_no_gpu() -> str | None:
    if program("nvidia-smi") is None:
        return "no NVIDIA driver"
    return _why_no_torch()


def _why_no_soak(config: pytest.Config) -> str | None:
    return None if "soak" in (config.option.markexpr or "") else "soak test: runs only with -m soak"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that run for each change, and skip the tests that this machine cannot run, with the reason."""
    importlib.import_module("tests.support.tiers").mark_tiers(config, items)
    reasons = {"netns": _why_no_netns(), "torch": _why_no_torch(), "gpu": _why_no_gpu(), "soak": _why_no_soak(config)}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the first worker of a run import before the other ones: in a new environment, only that one compiles.

    To compile what the tests import takes twice the CPU time of the imports.
    """
    with Path(__file__).open() as turn:
        if "PYTEST_XDIST_WORKER" in os.environ:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(turn, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish() -> None:
    """Begin garbage collection, without what the tests have imported, which would be examined again and again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Begin to count the CPU time of a test."""
    item.stash[_CPU_S] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Record the CPU time of a test with its fixtures, for the table of scripts/test."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", round(_cpu_s() - item.stash[_CPU_S], 3)))


def _cpu_s() -> float:
    """Return the CPU time of this process and of the processes that it has waited for."""
    return sum(os.times()[:4])


def pytest_unconfigure() -> None:
    """Remove the home of this run. A worker that died earlier leaves its home behind."""
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore logging after each test: a CLI command disables it, and sends what Airflow logs to its own stderr."""
    before = structlog.get_config()
    yield
    logging.disable(logging.NOTSET)
    structlog.configure(**before)


@pytest.fixture(scope="module", autouse=True)
def no_warm_parents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End the warm parents on the hosts of a module's tests. They would wait for ten minutes."""
    yield
    end_warm_parents = importlib.import_module("tests.support.warm_parents").end_warm_parents
    end_warm_parents(tmp_path_factory.getbasetemp(), f"/var/tmp/dtrain-{os.getuid()}/")  # noqa: S108


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The AIRFLOW_HOME of this test run, with its metadata database migrated."""
    from airflow.utils.db import initdb

    initdb()
    return AIRFLOW_HOME
