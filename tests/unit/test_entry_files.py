"""The file of the code that an entrypoint starts."""

import pytest

from airflow_provider_dtrain.core.config.entry_files import entry_file


@pytest.mark.parametrize(
    ("entrypoint", "path"),
    [
        ("python train.py --lr 1", "train.py"), ("python3.12 -u -W ignore ./a/train.py", "a/train.py"),
        (["/opt/env/bin/python", "train.py"], "train.py"), ("./run.sh 1", "run.sh"),
    ],
)  # fmt: skip
def test_a_script_of_the_code_is_required(entrypoint: str | list[str], path: str) -> None:
    found = entry_file(entrypoint)
    assert found is not None
    assert (found.paths, found.is_required) == ((path,), True)


@pytest.mark.parametrize(
    "entrypoint",
    ["python -m train", "python -c 'import x'", "python /srv/train.py", "python", "bash -c train.py", "train.py"],
)  # fmt: skip
def test_a_command_that_names_no_script_of_the_code_has_no_file(entrypoint: str) -> None:
    assert entry_file(entrypoint) is None


def test_the_module_of_a_trial_class_may_be_installed() -> None:
    found = entry_file("models.vision:Trial")
    assert found is not None
    assert (found.paths, found.is_required) == (("models/vision.py", "models/vision/__init__.py"), False)
