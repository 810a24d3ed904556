"""Fuzz runs with a complete Airflow. ``python -m tests.faults.soak --airflow`` runs many more."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.netns import missing
from tests.faults.fuzz_airflow import AWAY, FAULTS, NEED_ANSWERS, PARTS, draw, one_run
from tests.faults.stage import Stage, staged

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Airflow with three hosts of two slots."""
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    shutil.copytree(HERE / "dags", dags, dirs_exist_ok=True)
    shutil.copytree(HERE / "code", dags / "code")
    with staged(Stage, home, dags, AIRFLOW__DTRAIN__KILL_GRACE_S="2") as stage:
        yield stage


@pytest.mark.netns
@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(bool(missing()), reason=missing() or "")
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_fuzzed_run_under_airflow_leaves_no_violation(stage: Stage, seed: int) -> None:
    run = one_run(stage, seed)
    assert run.violations == (), [*run.notes, stage.describe()]


def test_every_drawn_combination_of_faults_can_happen() -> None:
    drawn = {frozenset(draw(random.Random(seed), tuple(FAULTS), 2)) for seed in range(400)}
    assert set().union(*drawn) == set(FAULTS)
    for chosen in drawn:
        hit = [name.split()[-1] for name in chosen if name.split()[-1] in PARTS]
        assert len(hit) == len(set(hit))
        assert not (chosen & NEED_ANSWERS and chosen & AWAY)
