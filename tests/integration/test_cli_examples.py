"""The examples' configurations as the README gives them to the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_world import World

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]
DAGS = Path(__file__).parents[2] / "dags"
EXAMPLES = sorted(path for path in DAGS.glob("*/*.yaml") if path.name != "template.yaml")


@pytest.fixture(scope="module")
def ready(world: World) -> World:
    """A store with the host ``local``, and an Airflow that knows the DAG of ``experiments create``."""
    assert world("init").code == 0
    assert world("hosts", "add", "local", "--slots", "cpu:2").code == 0
    for arguments in (("dags", "reserialize"), ("dags", "unpause", "dtrain_experiment", "-y")):
        done = world.airflow(*arguments)
        assert done.code == 0, done.err
    return world


def test_there_are_six_examples() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.nightly("digits-digits", "digits-grid", "large_batch-large")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_example_is_validated_previewed_and_created(ready: World, path: Path) -> None:
    given = [str(path), "--template", str(path.with_name("template.yaml"))]
    for command in (("configs", "validate"), ("searches", "preview"), ("experiments", "create")):
        done = ready(*command, *given)
        assert done.code == 0, f"{' '.join(command)}: {done.out}{done.err}"
