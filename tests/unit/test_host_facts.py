"""Facts of hosts, GPUs and ranks that may explain a slow rank, from files of a kernel that the test writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.series import metrics
from airflow_provider_dtrain.supervisor.run.cgroup import cgroup_folders, controller_mounts
from airflow_provider_dtrain.supervisor.run.host_facts import FACTS_S, GpuFacts, HostFacts

DEV = "header\nheader\n  eth0: 0 0 {errors} 0 0 0 0 0 0 0 1 0 0 0 0 0\n    lo: 0 0 99 0 0 0 0 0 0 0 9 0 0 0 0 0\n"


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def kernel(root: Path, *, second: int, quota: bool = True) -> None:
    """Write the files of a kernel after some seconds in which half of everything goes wrong."""
    ticks = 100 * second
    write(root, {
        "proc/stat": f"cpu  {50 * second} 0 0 {25 * second} 0 0 0 {25 * second} 0 0\n",
        "proc/pressure/cpu": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={500_000 * second}\nfull total=7\n",
        "proc/pressure/io": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={250_000 * second}\nfull total=7\n",
        "proc/net/snmp": f"Ip: A\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: 5 {1000 * second} {20 * second}\n",
        "proc/net/dev": DEV.format(errors=3 * second),
        "proc/41/schedstat": f"5 {400_000_000 * second} 9\n",
        "proc/41/cgroup": "5:cpu,cpuacct:/\n0::/slice/run\n",
        "sys/fs/cgroup/slice/run/cpu.stat": "usage_usec 5\n",
        "sys/fs/cgroup/slice/cpu.stat":
            f"usage_usec 5\nnr_periods {10 * second}\nnr_throttled {7 * second}\n" if quota else "nr_periods 0\n",
        "sys/fs/cgroup/cpu.stat": f"usage_usec {ticks}\n",
        "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    })  # fmt: skip
    for cpu in range(20):
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq": f"{1_000_000 + 50_000 * cpu}\n"})


def facts_of(root: Path, **changes: Any) -> dict[str, Any]:
    kernel(root, second=100, **changes)
    facts = HostFacts([{"rank": 3, "pid": 41}, {"rank": 4, "pid": 42}], lambda name: name == "eth0", str(root))
    assert facts.is_due(1000.0)
    assert facts.sample(1000.0) == {}, "nothing has passed yet"
    assert not facts.is_due(1000.0 + FACTS_S - 1)
    assert facts.is_due(1000.0 + FACTS_S)
    kernel(root, second=110, **changes)
    return facts.sample(1010.0)


def test_facts_are_of_the_time_since_the_last_reading(tmp_path: Path) -> None:
    assert facts_of(tmp_path) == {
        "cpu_steal": 25.0, "cpu_pressure": 50.0, "io_pressure": 25.0, "cpu_clock": 1450.0, "net_retransmitted": 2.0,
        "net_errors": 3.0, "ranks": [{"rank": 3, "cpu_wait": 40.0, "cpu_throttled": 70.0}],
    }  # fmt: skip


def test_a_cgroup_without_quota_is_not_throttled(tmp_path: Path) -> None:
    assert facts_of(tmp_path, quota=False)["ranks"] == [{"rank": 3, "cpu_wait": 40.0}]


def test_a_host_without_these_files_has_no_facts(tmp_path: Path) -> None:
    facts = HostFacts([{"rank": 3, "pid": 41}], lambda _: True, str(tmp_path))
    assert (facts.sample(1.0), facts.sample(11.0)) == ({}, {})


@pytest.mark.parametrize(
    "name", ["proc/stat", "proc/pressure/cpu", "proc/net/snmp", "proc/net/dev", "proc/41/schedstat"]
)
@pytest.mark.parametrize("content", ["", "\n", "cpu\n", "some total=x\n", "Tcp: A\nTcp: 1\n", "x x\n\neth0:\n\0\0"])
def test_a_file_of_an_unknown_form_costs_its_facts_only(tmp_path: Path, name: str, content: str) -> None:
    facts = HostFacts([{"rank": 3, "pid": 41}], lambda _: True, str(tmp_path))
    for second in (1, 2):
        kernel(tmp_path, second=second)
        write(tmp_path, {name: content})
        found = facts.sample(100.0 + second)
    assert found["io_pressure"] == 25.0 or name == "proc/pressure/cpu"


def test_cgroups_are_found_in_both_versions_and_below_a_mounted_part(tmp_path: Path) -> None:
    mounts = (
        "30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 1 0:27 /docker/7 /sys/fs/cgroup/cpu\\054cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 1 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    )
    groups = "9:cpuset:/elsewhere\n8:cpu,cpuacct:/docker/7/ranks\n0::/a/b\n"
    write(tmp_path, {"proc/self/mountinfo": mounts, "proc/41/cgroup": groups})
    known = controller_mounts("cpu", str(tmp_path))
    found = [path.removeprefix(str(tmp_path)) for path in cgroup_folders(41, "cpu", known, str(tmp_path))]
    v1, v2 = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"
    assert found == [f"{v1}/ranks", v1, f"{v2}/a/b", f"{v2}/a", v2]
    write(tmp_path, {"proc/41/cgroup": "0::/../../outside\n"})
    assert cgroup_folders(41, "cpu", known, str(tmp_path)) == []


class Driver:
    """A driver that lists processes and answers what the test says."""

    def __init__(self, pids: list[int], **answers: Any) -> None:
        self.pids, self.answers = pids, answers

    def call(self, function: str, *_: Any) -> Any:
        return self.answers.get(function.removeprefix("nvmlDeviceGet"))

    def processes(self, _: Any) -> list[tuple[int, int]]:
        return [(pid, 0) for pid in self.pids]


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def test_processes_on_a_gpu_that_descend_from_no_rank_are_counted(child: int) -> None:
    own, parent = os.getpid(), os.getppid()
    of_parent = GpuFacts([{"pid": own}])
    assert of_parent.read(Driver([own, child]), None) == {"gpu_other_processes": 0}
    assert of_parent.read(Driver([own, child, parent, 1]), None) == {"gpu_other_processes": 2}
    assert of_parent.read(Driver([own, 2**22 + 5]), None) == {"gpu_other_processes": 0}, "it has ended"
    assert of_parent.read(Driver([parent]), None) == {}, "the numbers are those of another PID namespace"


def test_reasons_for_reduced_clocks_have_names() -> None:
    found = GpuFacts([]).read(Driver([], CurrentClocksThrottleReasons=0x20 | 0x80, ClockInfo=1200), None)
    assert found == {
        "gpu_clock": 1200, "gpu_thermal_slowdown": 100, "gpu_power_slowdown": 100, "gpu_hardware_slowdown": 0,
    }  # fmt: skip
    found = GpuFacts([]).read(Driver([], CurrentClocksEventReasons=0x08, CurrentClocksThrottleReasons=0x20), None)
    assert (found["gpu_thermal_slowdown"], found["gpu_hardware_slowdown"]) == (0, 100)


def test_the_control_side_knows_which_metrics_are_facts_and_how_often_they_are_read(tmp_path: Path) -> None:
    assert FACTS_S == metrics.FACTS_S
    gpu = Driver([os.getpid()], CurrentClocksEventReasons=0, ClockInfo=1, Temperature=1, PowerUsage=1, TotalEccErrors=0,
                 RemappedRows=(0, 0, 0, 0))  # fmt: skip
    found = facts_of(tmp_path)
    of_ranks = found.pop("ranks")[0]
    del of_ranks["rank"]
    assert {*found, *of_ranks, *GpuFacts([{"pid": os.getpid()}]).read(gpu, None)} == metrics.FACTS
    assert set(of_ranks) == metrics.OF_RANKS
