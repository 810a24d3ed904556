"""Slurm's times, sizes, lists of hosts, versions and shapes of gangs."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.slurm.cluster import (
    Node,
    NoTimeLimit,
    Partition,
    partition_of,
    time_limit_of,
    warning_s,
)
from airflow_provider_dtrain.core.slurm.hostlist import MAX_HOSTS, compress, expand
from airflow_provider_dtrain.core.slurm.node_shape import NodeShape, NoShape, node_shape
from airflow_provider_dtrain.core.slurm.options import slurm_options
from airflow_provider_dtrain.core.slurm.quantities import mebibytes_of, seconds_of, slurm_time
from airflow_provider_dtrain.core.slurm.releases import version_of, warnings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("24:00:00", 86400), ("1-0", 86400), ("1-12", 129600), ("1-12:30", 131400),
        ("1-00:00:01", 86401), ("24h", 86400), ("1d12h", 129600), ("30m", 1800), ("2w", 1209600), ("0", 0),
        ("UNLIMITED", None), ("infinite", None), ("n/a", None), ("NONE", None), ("", None), ("-1", None),
        ("1:2:3:4", None), ("1.5h", None), ("١", None), ("9" * 40, None), ("1-", None), ("5x", None),
    ],
)  # fmt: skip
def test_times_are_read(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(60, "00:01:00"), (86400, "1-00:00:00"), (90061.2, "1-01:01:02")])
def test_times_are_written_and_read_again(seconds: float, text: str) -> None:
    assert slurm_time(seconds) == text
    assert (seconds_of(text) or 0) >= seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4000", 4000), ("4000M", 4000), ("32G", 32768), ("1.5g", 1536), ("512K", 1), ("2T", 2097152),
        ("16 GiB", 16384), ("0", None), ("x", None), ("-1G", None), ("1E", None), ("G", None), ("9" * 30, None),
        ("999999999P", None),
    ],
)  # fmt: skip
def test_sizes_are_read_in_mebibytes(text: str, size: int | None) -> None:
    assert mebibytes_of(text) == size


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]), ("n[1-3]", ["n1", "n2", "n3"]), ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]), ("a[1]-ib", ["a1-ib"]), ("", []), ("(null)", []),
        ("n1,n1", ["n1"]),
    ],
)  # fmt: skip
def test_lists_of_hosts_are_expanded(text: str, names: list[str]) -> None:
    assert expand(text) == names
    assert expand(compress(names)) == names or set(expand(compress(names))) == set(names)


@pytest.mark.parametrize(
    "text", ["n[1-", "n[1-3", "n]1", "n[3-1]", "n[a-b]", "a,,b", ",a", "a b", "n[1-9999999]", "[]"]
)
def test_a_broken_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hosts|range|names"):
        expand(text)


def test_a_list_of_hosts_is_bounded() -> None:
    with pytest.raises(ValueError, match=str(MAX_HOSTS)):
        expand("a[1-1000]b[1-1000]c[1-1000]")


def test_names_are_compressed() -> None:
    assert compress(["n1", "n2", "n3", "n5", "m07", "login"]) == "login,n[1-3,5],m07"


@pytest.mark.parametrize(
    ("slots", "sizes", "shape"),
    [
        (8, {8: 4}, (1, 8)), (16, {8: 4}, (2, 8)), (12, {8: 4}, (2, 6)), (9, {8: 4}, (3, 3)), (4, {2: 4}, (2, 2)),
        (1, {2: 4}, (1, 1)), (0, {2: 4}, (1, 0)), (10, {8: 1, 4: 4}, (5, 2)), (12, {8: 1, 4: 4}, (3, 4)),
        (8, {8: 1, 4: 4}, (1, 8)), (3, {1: 4}, (3, 1)),
    ],
)  # fmt: skip
def test_a_gang_takes_the_fewest_equal_nodes(slots: int, sizes: dict[int, int], shape: tuple[int, int]) -> None:
    assert node_shape(slots, sizes) == NodeShape(nodes=shape[0], slots_per_node=shape[1])


@pytest.mark.parametrize(("slots", "sizes"), [(7, {4: 3}), (9, {8: 2}), (64, {8: 4}), (1, {}), (0, {}), (5, {0: 3})])
def test_a_gang_without_a_shape_gets_the_sizes_that_work(slots: int, sizes: dict[int, int]) -> None:
    refused = node_shape(slots, sizes)
    assert isinstance(refused, NoShape)
    if any(sizes):
        near = refused.reason.rpartition(": ")[2].rstrip(".").split(", ")
        assert all(isinstance(node_shape(int(size), sizes), NodeShape) for size in near)
        assert len(near) >= 4


def test_a_gang_on_a_single_host_takes_one_node_or_none() -> None:
    assert node_shape(8, {8: 4}, is_single_host=True) == NodeShape(nodes=1, slots_per_node=8)
    refused = node_shape(16, {8: 4}, is_single_host=True)
    assert isinstance(refused, NoShape)
    assert "on one node" in refused.reason


@pytest.mark.parametrize(
    ("text", "count"), [("22.05.4", 0), ("22.05.5", 1), ("22.05.8", 1), ("22.05.9", 0), ("25.11.1", 0)]
)
def test_versions_with_a_known_bug_are_named(text: str, count: int) -> None:
    version = version_of(f"slurm-wlm {text}")
    assert version is not None
    assert len(warnings(version)) == count
    assert not count or "15857" in warnings(version)[0]


def test_old_and_unknown_versions_are_named() -> None:
    assert "--overlap" in warnings((19, 5, 7))[0]
    assert "not known" in warnings(version_of("no slurm"))[0]


def partition(*, maximum: int | None = None, default: int | None = None, name: str = "main") -> Partition:
    return Partition(name=name, is_default=True, state="UP", max_time_s=maximum, default_time_s=default)


def test_a_job_always_has_a_time_limit() -> None:
    pool = slurm_options({"time_limit": "1h"})
    assert time_limit_of(pool, partition(maximum=7200, default=60)) == 3600
    assert time_limit_of(slurm_options({}), partition(maximum=7200, default=60)) == 60
    assert time_limit_of(slurm_options({}), partition(maximum=7200)) == 7200
    assert isinstance(time_limit_of(pool, partition(maximum=1800)), NoTimeLimit)
    unlimited = time_limit_of(slurm_options({}), partition())
    assert isinstance(unlimited, NoTimeLimit)
    assert "--time-limit" in unlimited.reason
    assert isinstance(time_limit_of(slurm_options({}), None), NoTimeLimit)


def test_a_job_is_warned_in_time_and_not_too_early() -> None:
    assert warning_s(limit_s=86400, stop_s=600) == 660
    assert warning_s(limit_s=600, stop_s=600) == 150
    assert warning_s(limit_s=86400, stop_s=600, checkpoint_s=20) == 60
    assert warning_s(limit_s=86400 * 30, stop_s=1e6) == 65535
    assert warning_s(limit_s=86400, stop_s=600, checkpoint_s=0.0) == 1


def node(name: str = "n1", state: str = "IDLE", **fields: object) -> Node:
    return Node(name=name, state=state, cpus=32, memory_mib=1000, **fields)  # type: ignore[arg-type]


def test_slots_of_a_node_follow_from_its_devices_and_cpus() -> None:
    gpus = node(gres=(("gpu", "a100", 4), ("gpu", "v100", 2), ("nvme", "", 1)))
    assert gpus.slots(slurm_options({})) == 6
    assert gpus.slots(slurm_options({"gres_type": "a100"})) == 4
    assert gpus.slots(slurm_options({"gres_type": "a100", "cpus_per_slot": 16})) == 2
    assert gpus.slots(slurm_options({"gres_name": "nvme"})) == 1
    assert gpus.slots(slurm_options({"slots": "cpu", "cpus_per_slot": 5})) == 6
    assert node().slots(slurm_options({})) == 0


def test_sizes_of_a_partition_count_its_nodes() -> None:
    nodes = (node("a", gres=(("gpu", "", 8),)), node("b", "DOWN", gres=(("gpu", "", 8),)), node("c"))
    one = Partition(name="p", is_default=False, state="UP", max_time_s=None, default_time_s=None, nodes=nodes)
    assert one.sizes(slurm_options({})) == {8: 2}
    assert one.sizes(slurm_options({"slots_per_node": 4})) == {4: 2}


@pytest.mark.parametrize(
    ("state", "usable"),
    [("IDLE", True), ("MIXED", True), ("ALLOCATED", True), ("DOWN", False), ("DRAINING", False), ("POWERED_DOWN", True)]
    + [("POWERING_DOWN", True), ("MAINT", False), ("FAILING", False), ("PLANNED", True), ("DRAINED", False)],
)
def test_nodes_that_get_no_jobs_are_known(state: str, usable: bool) -> None:
    assert node(state=state).is_usable == usable
    assert not node(state=state, is_silent=True).is_usable


def test_the_partition_of_a_pool_is_the_first_that_exists() -> None:
    first, second = (
        partition(name="a"),
        Partition(name="b", is_default=False, state="UP", max_time_s=None, default_time_s=None),
    )
    assert partition_of(slurm_options({}), [second, first]) is first
    assert partition_of(slurm_options({"partition": "x,b"}), [first, second]) is second
    assert partition_of(slurm_options({"partition": "x"}), [first, second]) is None
