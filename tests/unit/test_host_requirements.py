"""The sentence that names a host's shortcoming, before a launch and at a probe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.assembly import assemble
from airflow_provider_dtrain.core.launch.requirements import is_older, shortcoming
from airflow_provider_dtrain.engine.attempt import launch
from airflow_provider_dtrain.engine.attempt.job import launcher_modules, optimization_modules
from airflow_provider_dtrain.engine.operations.probe_report import warnings
from airflow_provider_dtrain.errors import EnvironmentMissingError

PYTHON = "/opt/bin/python"


@pytest.mark.parametrize(
    ("python", "modules", "words"),
    [
        ("3.9.2", {}, None),
        ("3.11.7", {"torch": "2.4.0+cu121", "numpy": "1.0"}, None),
        ("3.11.7", {"torch": "2.13.0a0+git1234"}, None),
        ("3.11.7", {"torch": "unknown"}, None),
        ("3.8.20", {"torch": "2.4.1"}, "is Python 3.8.20, but ranks need 3.9 or newer. Set environment.python"),
        ("2.7.18", {}, "is Python 2.7.18, but ranks need 3.9 or newer"),
        (
            "3.9.2",
            {"torch": None, "numpy": None},
            "lacks torch, numpy. Install with: /opt/bin/python -m pip install ",
        ),
        ("3.9.2", {"PIL": None}, "lacks PIL. Install with: /opt/bin/python -m pip install pillow"),
        ("3.9.2", {"torch": "2.3.1"}, "has torch 2.3.1, but 2.4 or newer is needed. Install with: /opt/bin/"),
        ("3.9.2", {"torch": "1.13", "pyarrow": None}, "lacks pyarrow and has torch 1.13, but 2.4 or newer is needed"),
    ],
)
def test_a_shortcoming_has_the_command_that_ends_it(python: str, modules: dict[str, str | None], words: str) -> None:
    found = shortcoming(PYTHON, python, modules)
    if words is None:
        assert found is None
    else:
        assert words in found.replace(f"(Python {python}) ", "")
        assert found.startswith(PYTHON)


def test_code_that_still_imports_determined_is_told_the_import_of_its_names() -> None:
    found = shortcoming(PYTHON, "3.11.7", {"determined": None, "torch": None})
    assert found == (
        f"The code imports determined, which {PYTHON} lacks. Change 'import determined as det' to 'from "
        "airflow_provider_dtrain.train import determined as det', see docs/training/core-api.md."
    )
    assert shortcoming(PYTHON, "3.11.7", {"determined": "0.38.1"}) is None


def test_versions_are_compared_by_number() -> None:
    assert is_older("2.3.9", (2, 4))
    assert not is_older("2.10.0", (2, 4))
    assert not is_older("3.0", (2, 4))
    assert not is_older(None, (2, 4))


async def test_the_check_before_a_launch_refuses_an_old_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"executable": PYTHON, "python": "3.11.7", "modules": {"torch": "2.1.0"}, "mounts": [], "foreign": []}

    async def answer(*_: Any, **__: Any) -> dict[str, Any]:
        return {**found, "problems": []}

    monkeypatch.setattr(launch, "answer", answer)
    link: Any = SimpleNamespace(host="gpu-1")
    job: Any = SimpleNamespace(
        python=lambda host: None, environment=None, setup=None, modules=("torch",), mounts=[], devices={"gpu-1": {}}
    )
    view: Any = SimpleNamespace(placement={"gpu-1": (0,)})
    with pytest.raises(EnvironmentMissingError, match=r"'gpu-1': .*has torch 2\.1\.0, but 2\.4 or newer is needed"):
        await launch._check(link, view, job, has_container=False)
    found["modules"] = {"torch": "2.4.0"}
    await launch._check(link, view, job, has_container=False)


@pytest.mark.parametrize(
    ("torch", "words"), [(None, "has no PyTorch"), ("2.3.0", "has PyTorch 2.3.0, but training needs 2.4 or newer")]
)
def test_a_probe_warns_of_a_missing_and_of_an_old_pytorch(torch: str | None, words: str) -> None:
    facts = {"executable": PYTHON, "torch": torch, "lock_dir": "/run/lock"}
    (warning,) = warnings("gpu-1", facts)
    assert words in warning
    assert f"{PYTHON} -m pip install" in warning
    assert warnings("gpu-1", {**facts, "torch": "2.4.0"}) == []


@pytest.mark.parametrize(
    ("compression", "slots", "needed"), [("powersgd", 2, ("numpy",)), ("powersgd", 1, ()), ("fp16", 2, ())]
)
def test_only_powersgd_needs_numpy(compression: str, slots: int, needed: tuple[str, ...]) -> None:
    config: Any = SimpleNamespace(optimizations=SimpleNamespace(gradient_compression=compression))
    assert optimization_modules(config, slots) == needed


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("python train.py", ()),
        ("torchrun train.py", ("torch",)),
        ("deepspeed train.py", ("deepspeed",)),
        ("ray symmetric-run -- python train.py", ("ray",)),
    ],
)
def test_hosts_need_the_launcher_of_the_command(command: str, modules: tuple[str, ...]) -> None:
    document = {"entrypoint": command, "searcher": {"name": "single", "metric": "loss"}}
    assert launcher_modules(assemble(None, document).config) == modules
