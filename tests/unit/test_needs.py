"""The requirements of a command are read from the code that is sent to hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.attempt.required_modules import needed_modules
from airflow_provider_dtrain.hosts.payload import pack


@pytest.fixture
def code(tmp_path: Path) -> bytes:
    files = {
        "plain.py": "import os, json",
        "direct.py": "if True:\n    import torch.nn as nn",
        "library.py": "import airflow_provider_dtrain.train as dtrain",
        "trial.py": "from airflow_provider_dtrain.train import PyTorchTrial",
        "through.py": "from models import net",
        "models/__init__.py": "",
        "models/net.py": "def make():\n    from torch import nn",
        "broken.py": "def (",
        "arrays.py": "import numpy as np",
        "through_arrays.py": "from arrays import load",
        "maybe.py": "try:\n    import numpy\nexcept ImportError:\n    numpy = None\ndef load():\n    import arrays",
        "unchanged.py": "from determined.pytorch import PyTorchTrial\nimport models",
        "core_api.py": "from airflow_provider_dtrain.train import determined as det",
        "hugging_face.py": "from airflow_provider_dtrain.train.determined.transformers import DetCallback",
        "batches.py": "from airflow_provider_dtrain.train.determined.pytorch import experimental",
        "loop_a.py": "import loop_b",
        "loop_b.py": "import loop_a",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return pack(tmp_path).content


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["python", "plain.py"], ()),
        (["python", "direct.py", "--lr", "1"], ("torch",)),
        (["python", "./library.py"], ()),
        (["python", "trial.py"], ("torch",)),
        (["python", "through.py"], ("torch",)),
        (["python", "-m", "models.net"], ("torch",)),
        (["python", "broken.py"], ()),
        (["python", "arrays.py"], ("numpy",)),
        (["python", "through_arrays.py"], ("numpy",)),
        (["python", "maybe.py"], ()),
        (["python", "unchanged.py"], ("determined",)),
        (["python", "core_api.py"], ()),
        (["python", "hugging_face.py"], ("torch",)),
        (["python", "batches.py"], ("torch",)),
        (["python", "loop_a.py"], ()),
        (["python", "not_there.py"], ()),
        (["python", "-m", "airflow_provider_dtrain.train.harness", "plain:Trial"], ("torch",)),
        (["python", "-m", "runner", "through:Trial"], ("torch",)),
        (["/bin/true"], ()),
    ],
)
def test_only_what_the_command_reaches_counts(code: bytes, command: list[str], needed: tuple[str, ...]) -> None:
    assert needed_modules(command, code) == needed


def test_modules_of_the_code_itself_are_not_missing(tmp_path: Path) -> None:
    (tmp_path / "determined").mkdir()
    (tmp_path / "determined" / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text("import determined, numpy")
    assert needed_modules(["python", "train.py"], pack(tmp_path).content) == ("numpy",)
