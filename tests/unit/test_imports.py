"""Importing the edge of the package is cheap."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_provider_dtrain

PACKAGE = Path(airflow_provider_dtrain.__file__).parent
ROOT = PACKAGE.parent
HEAVY = {"torch", "paramiko", "optuna", "scipy", "fastapi", "alembic"}
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


def test_the_commands_that_list_the_store_import_no_models_of_configurations() -> None:
    loaded = loaded_after("import airflow_provider_dtrain.cli._in_process, airflow_provider_dtrain.terminal.trials")
    assert {name for name in loaded if name.startswith("airflow_provider_dtrain.core.config.")} == set()


def test_the_package_itself_brings_in_neither_airflow_nor_anything_heavy() -> None:
    found = loaded_after("import airflow_provider_dtrain.get_provider_info")
    assert found & (HEAVY | {"airflow"}) == set()


def test_the_training_library_can_be_imported_without_torch() -> None:
    assert loaded_after("import airflow_provider_dtrain.train") & {"torch", "airflow"} == set()


def test_a_channel_to_a_host_opens_without_what_few_commands_need() -> None:
    """These would add half to the time of its start, and each worker that starts a trial opens a channel."""
    rare = {"http.client", "importlib.metadata", "ssl", "statistics", "traceback", "urllib.request"}
    code = "import airflow_provider_dtrain.supervisor.__main__"
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    # As on a host, whose interpreter may run code of other packages at its start: -S.
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) & rare == set()


#: Modules that code on hosts imports beside Python's own and PyTorch -> the files that may. A file that imports one
#: when it is imported itself serves nothing else. The other ones do without, or name what to install.
ON_HOSTS = {
    "PIL": ["train/inference/inputs/file_reader.py"],
    "accelerate": ["train/integrations/accelerate.py"],
    "fsspec": ["train/files/file_systems.py"],
    "lightning": ["train/integrations/lightning.py"],
    "mlflow": ["train/reports/experiment_loggers.py"],
    "numpy": ["train/checkpoint/state_values.py", "train/process/seeding.py", "train/trial/samplers.py"],
    "pyarrow": ["train/inference/"],
    "pynvml": ["supervisor/machine/gpu.py"],
    "pytorch_optimizer": ["train/optim/layerwise.py"],
    "transformers": ["train/integrations/transformers.py"],
    "wandb": ["train/reports/experiment_loggers.py"],
    "yaml": ["train/process/yaml12.py"],
}
#: Functions of PyTorch that need NumPy.
NEED_NUMPY = {
    "all_gather_object", "broadcast_object_list", "from_numpy", "gather_object", "recv_object_list",
    "scatter_object_list", "send_object_list",
}  # fmt: skip


def sources_on_hosts() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("train", "supervisor"):
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            yield file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_code_on_hosts_needs_nothing_but_python_and_pytorch() -> None:
    expected = {*sys.stdlib_module_names, "airflow_provider_dtrain", "torch"}
    found = {(module, file) for file, tree in sources_on_hosts() for module in imported(tree) if module not in expected}
    assert {module for module, _ in found} == set(ON_HOSTS)
    assert [one for one in found if not one[1].startswith(tuple(ON_HOSTS[one[0]]))] == []


def test_code_on_hosts_calls_nothing_of_pytorch_that_needs_numpy() -> None:
    """``tensor.numpy()`` is called where a RuntimeError is caught, which PyTorch raises without NumPy."""
    wrong = []
    for file, tree in sources_on_hosts():
        caught = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.Try) and any("RuntimeError" in ast.dump(handler) for handler in block.handlers)
            for statement in block.body
            for node in ast.walk(statement)
        }
        for node in ast.walk(tree):
            name = getattr(node, "attr", getattr(node, "id", None))
            converts = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "numpy"
            if (name in NEED_NUMPY and "inference/outputs" not in file) or (converts and id(node) not in caught):
                wrong.append(f"{file}:{node.lineno}")
    assert wrong == []
