"""Importing the edge of the package is cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_dtrain

PACKAGE = Path(airflow_provider_dtrain.__file__).parent
ROOT = PACKAGE.parent
HEAVY = {"torch", "paramiko", "optuna", "fastapi", "alembic"}
EDGE = sorted(
    f"airflow_provider_dtrain.{folder}.{file.stem}"
    for folder in ("operators", "sensors", "triggers", "decorators", "links", "plugins")
    for file in (PACKAGE / folder).glob("[a-z]*.py")
) + ["airflow_provider_dtrain.assets", "airflow_provider_dtrain.task_groups"]


#: Imports Airflow's own modules once, and runs each code in a fork. Prints the modules that are loaded then.
IN_FORKS = """
import json, os, sys
import airflow.plugins_manager, airflow.sdk, airflow.triggers.base
found = {}
for code in ["", *json.loads(sys.argv[1])]:
    reads, writes = os.pipe()
    if os.fork() == 0:
        exec(code)
        os.write(writes, "\\n".join(sys.modules).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        found[code] = pipe.read().split()
print(json.dumps(found))
"""
ENGINE = (
    "airflow_provider_dtrain.engine.attempt.runner",
    "airflow_provider_dtrain.hosts.channel.link_pool",
    "asgiref.sync",
)
TRIGGERS = [f"airflow_provider_dtrain.triggers.{name}" for name in ("trial", "gang", "experiment")]


def importing(module: str) -> str:
    return f"import {module}"


def loading_the_engine(module: str) -> str:
    return f"import asyncio, {module} as module\nasyncio.run(module.load_engine())"


@pytest.fixture(scope="module")
def modules_after() -> dict[str, set[str]]:
    """The loaded modules after each code, in a process that has imported Airflow."""
    codes = [*map(importing, EDGE), *map(loading_the_engine, TRIGGERS[:2])]
    command = [sys.executable, "-c", IN_FORKS, json.dumps(codes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = {code: set(names) for code, names in json.loads(done.stdout.splitlines()[-1]).items()}
    assert all(found.values()), done.stderr
    return found


def loaded_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after running the code."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.airflow
def test_no_module_at_the_edge_brings_in_anything_heavy(modules_after: dict[str, set[str]]) -> None:
    found = {module: modules_after[importing(module)] & HEAVY for module in EDGE}
    assert found == dict.fromkeys(EDGE, set())
    assert modules_after[""] & HEAVY == set(), "Airflow itself"


@pytest.mark.airflow
@pytest.mark.parametrize("trigger", TRIGGERS[:2])
def test_a_trigger_leaves_the_engine_to_a_thread_because_airflow_imports_triggers_in_its_event_loop(
    modules_after: dict[str, set[str]], trigger: str
) -> None:
    assert modules_after[importing(trigger)] & set(ENGINE) <= {"asgiref.sync"}
    assert modules_after[loading_the_engine(trigger)] >= set(ENGINE)


@pytest.mark.airflow
def test_the_trigger_that_polls_experiments_opens_the_store_in_a_thread(modules_after: dict[str, set[str]]) -> None:
    opened = {"airflow_provider_dtrain.store.store", "airflow_provider_dtrain.engine.attempt.runner"}
    assert modules_after[importing(TRIGGERS[2])] & opened == set()


def test_the_package_itself_brings_in_neither_airflow_nor_anything_heavy() -> None:
    found = loaded_after("import airflow_provider_dtrain.get_provider_info")
    assert found & (HEAVY | {"airflow"}) == set()


def test_the_training_library_can_be_imported_without_torch() -> None:
    assert loaded_after("import airflow_provider_dtrain.train") & {"torch", "airflow"} == set()
