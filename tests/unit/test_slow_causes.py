"""Causes of slow ranks that facts show, and facts that are no causes."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.series.metrics import SYSTEM_METRICS
from airflow_provider_dtrain.core.series.slow_causes import (
    _AFTER_LOADER,
    _BEFORE_LOADER,
    RankFacts,
    SlowCause,
    find_cause,
    straggler_text,
    usual_facts,
)

#: A healthy rank on a healthy host with a GPU.
HEALTHY = {
    "cpu_util": 40.0, "cpu_steal": 0.1, "cpu_pressure": 2.0, "io_pressure": 1.0, "cpu_clock": 2900.0,
    "net_retransmitted": 0.01, "net_errors": 0.0, "cpu_wait": 1.0, "cpu_throttled": 0.0, "gpu_clock": 1980.0,
    "gpu_temperature": 61.0, "gpu_thermal_slowdown": 0.0, "gpu_power_slowdown": 5.0, "gpu_hardware_slowdown": 0.0,
    "gpu_ecc_errors": 0.0, "gpu_remapped_rows": 0.0, "gpu_other_processes": 0.0,
}  # fmt: skip
PARTS = {"dataloader_next": 0.01, "forward": 0.05, "backward": 0.05, "step_optimizer": 0.01}


def cause(changes: dict[str, float], usual: dict[str, float] | None = None, **parts: float) -> tuple[SlowCause, str]:
    own = RankFacts(system={**HEALTHY, **changes}, parts={**PARTS, **(parts or {"forward": 0.1})})
    peers = [RankFacts(system={**HEALTHY, **(usual or {})}, parts=PARTS)] * 3
    found = find_cause(own, usual_facts(peers))
    return found.cause, found.text


@pytest.mark.parametrize(
    ("changes", "expected", "fact"),
    [
        ({"gpu_other_processes": 2}, SlowCause.OTHER_PROCESSES, "2 processes of another program use its GPU"),
        ({"gpu_other_processes": 1}, SlowCause.OTHER_PROCESSES, "1 process of another program"),
        (
            {"gpu_thermal_slowdown": 80, "gpu_clock": 1200, "gpu_temperature": 91}, SlowCause.GPU_THERMAL,
            "in 80 % of the time (1200 MHz, the other GPUs 1980 MHz; 91 °C)",
        ),
        ({"gpu_hardware_slowdown": 100, "gpu_clock": 800}, SlowCause.GPU_HARDWARE, "the hardware reduces the clocks"),
        ({"gpu_power_slowdown": 95, "gpu_clock": 1500}, SlowCause.GPU_POWER, "its power limit reduces"),
        ({"gpu_ecc_errors": 3}, SlowCause.GPU_MEMORY, "3 memory errors that ECC could not correct"),
        ({"gpu_clock": 1400}, SlowCause.GPU_CLOCK, "at 1400 MHz, those of the other ranks at 1980 MHz"),
        ({"cpu_throttled": 71}, SlowCause.CPU_QUOTA, "the CPU quota of its cgroup is used up in 71 % of the periods"),
        ({"cpu_steal": 22}, SlowCause.CPU_STEAL, "the hypervisor gives 22 % of the CPU time"),
        ({"cpu_wait": 48}, SlowCause.CPU_WAIT, "waits for a CPU in 48 % of the time"),
        ({"io_pressure": 60}, SlowCause.DISK, "wait for the disk in 60 % of the time"),
        ({"net_retransmitted": 4}, SlowCause.NETWORK, "4.0 % of its TCP segments again"),
        ({"net_errors": 12}, SlowCause.NETWORK, "12.0 errors per second"),
        ({"cpu_clock": 1400}, SlowCause.CPU_CLOCK, "the CPUs of its host run at 1400 MHz"),
        ({}, SlowCause.UNKNOWN, "no cause is visible in the measurements of its host. Most of the difference is in f"),
    ],
)  # fmt: skip
def test_a_fact_that_differs_from_the_other_ranks_is_the_cause(
    changes: dict[str, float], expected: SlowCause, fact: str
) -> None:
    found, text = cause(changes)
    assert found == expected
    assert fact in text


@pytest.mark.parametrize(
    "facts",
    [
        {"gpu_power_slowdown": 95.0, "gpu_clock": 1500.0},
        {"cpu_throttled": 60.0},
        {"cpu_steal": 30.0},
        {"cpu_wait": 50.0, "cpu_pressure": 90.0, "cpu_util": 100.0},
        {"io_pressure": 70.0},
        {"net_retransmitted": 5.0, "net_errors": 9.0},
        {"gpu_ecc_errors": 2.0, "gpu_remapped_rows": 9.0},
        {"gpu_thermal_slowdown": 50.0, "gpu_temperature": 90.0},
    ],
)
def test_what_all_ranks_have_is_no_cause(facts: dict[str, float]) -> None:
    assert cause(facts, usual=facts)[0] == SlowCause.UNKNOWN


@pytest.mark.parametrize(
    "facts",
    [
        {"cpu_throttled": 6.0}, {"cpu_steal": 3.0}, {"cpu_wait": 8.0}, {"io_pressure": 15.0},
        {"net_retransmitted": 0.5}, {"gpu_power_slowdown": 25.0}, {"gpu_clock": 1850.0}, {"cpu_clock": 2750.0},
        {"gpu_temperature": 75.0}, {"gpu_remapped_rows": 4.0}, {"cpu_pressure": 40.0},
    ],
)  # fmt: skip
def test_small_differences_are_no_cause(facts: dict[str, float]) -> None:
    assert cause(facts)[0] == SlowCause.UNKNOWN


def test_a_slow_loader_is_the_cause_unless_a_limit_of_the_host_explains_it() -> None:
    found, text = cause({}, dataloader_next=0.2)
    assert found == SlowCause.LOADER
    assert "which is 100 % of the difference" in text
    found, text = cause({"io_pressure": 70}, dataloader_next=0.2)
    assert found == SlowCause.LOADER
    assert "Also, processes of its host wait for the disk in 70 % of the time" in text
    assert cause({"cpu_throttled": 70}, dataloader_next=0.2)[0] == SlowCause.CPU_QUOTA
    assert cause({}, dataloader_next=0.02, forward=0.2)[0] == SlowCause.UNKNOWN


def test_without_facts_no_cause_is_visible() -> None:
    found = find_cause(RankFacts(), usual_facts([]))
    assert (found.cause, found.text) == (
        SlowCause.UNKNOWN, "no cause is visible in the measurements of its host.",
    )  # fmt: skip
    alone = RankFacts(system={"cpu_throttled": 80.0})
    assert find_cause(alone, usual_facts([RankFacts()])).cause == SlowCause.CPU_QUOTA


def test_every_fact_of_a_cause_is_a_metric_of_hosts() -> None:
    assert {one.metric for one in (*_BEFORE_LOADER, *_AFTER_LOADER)} <= set(SYSTEM_METRICS)


def test_the_sentence_begins_with_rank_and_host() -> None:
    text = straggler_text(3, "gpu-b", 1.62, 0.38, "the CPU quota is used up. Raise it.", "14:02:00 UTC")
    assert text == (
        "Rank 3 on gpu-b takes 1.6 times as long as the other ranks since 14:02:00 UTC (it costs the gang 38 % of each "
        "step): the CPU quota is used up. Raise it."
    )
