"""The library as a whole: what it imports, what it exports, which Python it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_dtrain.train as dtrain

ROOT = Path(dtrain.__file__).parent
MODULES = sorted(ROOT.glob("**/*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_module_is_python_3_9(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_imports_anything_else_of_the_package(path):
    imported = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    own = [name for name in imported if name.startswith("airflow")]
    assert all(name.startswith("airflow_provider_dtrain.train") for name in own)


def test_importing_the_library_imports_neither_torch_nor_airflow():
    code = "import sys, airflow_provider_dtrain.train; print({'torch', 'airflow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT.parents[1])
    assert done.stdout.strip() == "set()", done.stderr


def test_everything_that_is_exported_exists():
    assert all(hasattr(dtrain, name) for name in dtrain.__all__)
    assert sorted(dtrain.__all__) == dtrain.__all__
