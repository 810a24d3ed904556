"""Importing the edge of the package is cheap, and the layers import only downwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import airflow_provider_dtrain

PACKAGE = Path(airflow_provider_dtrain.__file__).parent
ROOT = PACKAGE.parent
HEAVY = ("torch", "paramiko", "optuna", "fastapi", "alembic")
EDGE = sorted(
    f"airflow_provider_dtrain.{folder}.{file.stem}"
    for folder in ("operators", "sensors", "triggers", "decorators", "links", "plugins")
    for file in (PACKAGE / folder).glob("[a-z]*.py")
) + ["airflow_provider_dtrain.assets", "airflow_provider_dtrain.task_groups"]


def loaded_after(code: str, names: Sequence[str] = HEAVY) -> set[str]:
    """Return which of the modules a new interpreter has loaded after running the code."""
    script = f"import sys\n{code}\nprint('\\n'.join(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split()) & set(names)


#: Imports Airflow's own modules once, and each module of the edge in a fork.
EACH = """
import importlib, json, os, sys
import airflow.plugins_manager, airflow.sdk, airflow.triggers.base
edge, heavy = json.loads(sys.argv[1])
found = {"airflow itself": [name for name in heavy if name in sys.modules]}
for module in edge:
    reads, writes = os.pipe()
    if os.fork() == 0:
        importlib.import_module(module)
        os.write(writes, json.dumps([name for name in heavy if name in sys.modules]).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        answer = pipe.read()
    found[module] = json.loads(answer) if answer else "not importable"
print(json.dumps(found))
"""


@pytest.mark.airflow
def test_no_module_at_the_edge_brings_in_anything_heavy() -> None:
    command = [sys.executable, "-c", EACH, json.dumps([EDGE, HEAVY])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == dict.fromkeys(["airflow itself", *EDGE], []), done.stderr


@pytest.mark.airflow
@pytest.mark.parametrize("name", ["trial", "gang"])
def test_a_trigger_leaves_the_engine_to_a_thread_because_airflow_imports_triggers_in_its_event_loop(name: str) -> None:
    engine = (
        "airflow_provider_dtrain.engine.attempt.runner",
        "airflow_provider_dtrain.hosts.channel.link_pool",
        "asgiref.sync",
    )
    module = f"airflow_provider_dtrain.triggers.{name}"
    assert loaded_after(f"import {module}", engine) <= {"asgiref.sync"}
    code = f"import asyncio, {module} as module\nasyncio.run(module.load_engine())"
    assert loaded_after(code, engine) == set(engine)


@pytest.mark.airflow
def test_the_trigger_that_polls_experiments_opens_the_store_in_a_thread() -> None:
    opened = ("airflow_provider_dtrain.store.store", "airflow_provider_dtrain.engine.attempt.runner")
    assert loaded_after("import airflow_provider_dtrain.triggers.experiment", opened) == set()


def test_the_package_itself_brings_in_neither_airflow_nor_anything_heavy() -> None:
    code = "import airflow_provider_dtrain.get_provider_info\nassert 'airflow' not in sys.modules"
    assert loaded_after(code) == set()


def test_the_training_library_can_be_imported_without_torch() -> None:
    assert "torch" not in loaded_after("import airflow_provider_dtrain.train\nassert 'airflow' not in sys.modules")


def test_the_layers_import_only_downwards() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    if not program.exists():
        pytest.skip("import-linter is not installed in this environment")
    done = subprocess.run([program, "--no-cache"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
