"""The example of notifications, as Airflow runs it in one process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cli_world import AIRFLOW, World

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.torch, pytest.mark.nightly]
DAGS = Path(__file__).parents[2] / "dags"


def test_the_example_notifies_about_new_bests_and_its_end(world: World) -> None:
    command = [*AIRFLOW, "dags", "test", "dtrain_notifications", "--conf", '{"epochs": 1}']
    environment = {**world.environment, "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, text[-3000:]
    said = re.findall(r"Notification: (.*?)(?:\s+\[|$)", text, re.MULTILINE)
    ended = [line for line in said if "finished" in line]
    assert len(ended) == 1, said
    assert re.match(r"Experiment digits-notified finished: best trial \d+, accuracy [\d.]+\. Task dtrain_not", ended[0])
    assert all(re.match(r"accuracy 0\.\d+ with \d \| dropout=.* lr=.*, before 0\.\d+", line) for line in said[:-1])
    assert said[-1] == ended[0]
