"""GPUs of a job on a node."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.slurm.devices import job_devices

NODE = [{"uuid": f"GPU-{letter * 8}-0000", "name": "A"} for letter in "abcd"]


@pytest.mark.parametrize(
    ("visible", "shown", "found"),
    [
        ("2,3", NODE, [2, 3]),
        ("3", NODE, [3]),
        ("GPU-bbbbbbbb-0000,GPU-aaaaaaaa-0000", NODE, [1, 0]),
        ("GPU-cccc", NODE, [2]),
        ("0,1", NODE[2:], [0, 1]),
        # Devices are constrained, and the numbers are those of the node.
        ("2,3", NODE[2:], [0, 1]),
    ],
)
def test_the_gpus_of_a_job_are_those_that_its_step_sees(visible: str, shown: list[object], found: list[int]) -> None:
    assert job_devices(visible, shown, len(found)) == [shown[index] for index in found]


@pytest.mark.parametrize(
    ("visible", "shown", "count"),
    [(None, NODE, 1), ("", NODE, 2), ("0", NODE, 2), ("7,8", NODE, 2), ("GPU-", NODE, 1), ("0,1", [], 2)],
)
def test_gpus_that_are_not_known_are_not_guessed(visible: str | None, shown: list[object], count: int) -> None:
    assert "CUDA_VISIBLE_DEVICES" in job_devices(visible, shown, count)
