"""Public names of Determined: each exists here, or its error says what to use instead."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.errors import NotOfferedError, NotOfferedNameError
from airflow_provider_dtrain.train.foreign_names import finder
from airflow_provider_dtrain.train.foreign_names.determined import INSTEAD, MODULES, PACKAGE, remedy

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "support" / "determined_names.txt"
#: Module of Determined -> its public names, for those whose names are offered here.
NAMES = {
    module: names.split()
    for line in LIST.read_text().splitlines()
    if not line.startswith("#")
    for module, _, names in [line.partition(":")]
}
#: Modules that need a framework of their own.
FRAMEWORKS = {"determined.transformers": "transformers"}


def here(name):
    return PACKAGE + name[len("determined") :]


@pytest.fixture
def _torch():
    pytest.importorskip("torch")


@pytest.mark.torch
@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_of_an_offered_module_is_here_or_says_what_to_use(module):
    pytest.importorskip(FRAMEWORKS.get(module, "torch"))
    assert NAMES[module]
    actual = importlib.import_module(here(module))
    for name in NAMES[module]:
        shown = f"{module}.{name}"
        if remedy(shown) is None:
            assert getattr(actual, name) is not None
        else:
            with pytest.raises(NotOfferedNameError, match=re.escape(f"{shown} is not offered. {remedy(shown)}")):
                getattr(actual, name)


@pytest.mark.torch
@pytest.mark.usefixtures("_torch")
def test_each_public_module_can_be_imported_or_says_what_to_use():
    for module in NAMES:
        if module in FRAMEWORKS:
            continue
        if module in MODULES:
            assert importlib.import_module(here(module)).__name__ == MODULES[module]
            continue
        with pytest.raises(ModuleNotFoundError, match="is not offered") as raised:
            importlib.import_module(here(module))
        assert isinstance(raised.value, NotOfferedError)


def test_modules_of_trial_classes_are_found_below_their_own_name_too():
    pytest.importorskip("torch")
    from airflow_provider_dtrain.train import pytorch

    experimental = importlib.import_module("airflow_provider_dtrain.train.pytorch.experimental")
    assert pytorch.experimental is experimental
    assert importlib.import_module(f"{PACKAGE}.pytorch") is pytorch
    with pytest.raises(NotOfferedNameError, match=r"determined\.pytorch\.deepspeed is not offered\. Use a script"):
        importlib.import_module("airflow_provider_dtrain.train.pytorch.deepspeed")


@pytest.mark.parametrize("name", ["nonsense", "keras_2", "core.nonsense", "_private"])
def test_what_determined_lacks_as_well_is_an_ordinary_error(name):
    importlib.import_module(PACKAGE)
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module(f"{PACKAGE}.{name}")
    assert not isinstance(raised.value, NotOfferedError)
    module, _, attribute = f"{PACKAGE}.{name}".rpartition(".")
    assert not hasattr(importlib.import_module(module), attribute)


def test_an_import_that_was_not_changed_says_how_to_change_it():
    code = (
        "import sys, airflow_provider_dtrain.train.determined\n"
        "try:\n    import determined.keras\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
        "from airflow_provider_dtrain.train.foreign_names import finder; finder.install()\n"
        "print(sum(type(finder).__name__ == 'DeterminedFinder' for finder in sys.meta_path))\n"
    )
    # Without installed packages, of which Determined may be one.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env={}, cwd=ROOT, timeout=60
    )
    first, count = done.stdout.splitlines()
    assert "Change 'import determined as det' to 'from airflow_provider_dtrain.train import determined as det'" in first
    assert count == "1", done.stderr


def test_a_real_determined_is_left_alone(tmp_path):
    (tmp_path / "determined").mkdir()
    (tmp_path / "determined" / "__init__.py").write_text("")
    code = (
        "import airflow_provider_dtrain.train.determined, determined\n"
        "print(determined.__file__)\n"
        "try:\n    import determined.keras\n"
        "except ModuleNotFoundError as error:\n    print(type(error).__name__, error)\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert done.stdout.splitlines() == [
        str(tmp_path / "determined" / "__init__.py"),
        "ModuleNotFoundError No module named 'determined.keras'",
    ], done.stderr


def test_remedies_name_modules_and_pages_that_exist():
    for name, text in INSTEAD.items():
        assert text.endswith("."), name
        for word in text.replace(",", " ").replace(":", " ").split():
            word = word.rstrip(".")
            if word.startswith("airflow_provider_dtrain."):
                assert (ROOT / (word.replace(".", "/") + ".py")).is_file() or _is_name(word), word
            if word.startswith("docs/"):
                assert (ROOT / word).is_file(), word


def _is_name(word):
    module, _, name = word.rpartition(".")
    place = ROOT / module.replace(".", "/")
    if (place / name).is_dir():
        return True
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return name in file.read_text()


def test_the_list_of_names_is_that_of_the_real_package():
    try:
        real = metadata.distribution("determined")
    except metadata.PackageNotFoundError:
        pytest.skip("needs determined: pip install --no-deps determined==0.38.1")
    found = {}
    for file in real.files or ():
        parts = list(file.with_suffix("").parts)
        if file.suffix != ".py" or parts[0] != "determined":
            continue
        if parts[-1] == "__init__":
            parts.pop()
        if not any(part.startswith("_") for part in parts):
            found[".".join(parts)] = Path(str(file.locate()))
    assert set(found) == set(NAMES)
    for module, names in NAMES.items():
        if module in MODULES:
            assert set(_public(found[module])) == set(names), module


def _public(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.ImportFrom) and path.name == "__init__.py":
            names = [alias.asname or alias.name for alias in node.names if (node.module or "").startswith("determined")]
        else:
            continue
        yield from (name for name in names if not name.startswith("_") and name != "logger")


def test_the_finder_leaves_all_other_modules_to_the_other_finders():
    for name in ("json", "airflow_provider_dtrain.train.pytorch", PACKAGE, "determinedness", "torch.determined"):
        assert finder.DeterminedFinder().find_spec(name) is None
