"""The parts of the time to the first result, from what scripts/demo prints."""

from __future__ import annotations

from bench.bench_first_result import SIGNS, parts_of

SCREEN = """Setting up .demo/venv.
Starting Airflow on http://127.0.0.1:28080 (its output: .demo/airflow.log).
  [   9 s] waiting for: API server
Running the DAG dtrain_digits (demo__2026-11-27T10:00:00).
  [   3 s] > train
  [   9 s] > train  |  step 20, accuracy 0.9000
accuracy 0.9700
"""


def test_each_part_ends_with_its_sign_and_reading_stops_at_the_first_result() -> None:
    seen: list[str] = []
    lines = ((line, 10.0 + place) for place, line in enumerate(SCREEN.splitlines(keepends=True)))
    assert parts_of(lines, 5.0, seen) == {"environment": 6.0, "Airflow ready": 2.0, "task": 2.0}
    assert "accuracy 0.9000" in seen[-1]


def test_a_screen_without_a_result_lacks_a_part() -> None:
    seen: list[str] = []
    assert set(parts_of([("Starting Airflow on x\n", 1.0), ("failed\n", 2.0)], 0.0, seen)) != set(SIGNS)
    assert seen == ["Starting Airflow on x\n", "failed\n"]
