"""Devices that the ranks of a gang see."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.launch.devices import host_devices, notices, shares_devices
from airflow_provider_dtrain.core.launch.plan import HostFacts, LaunchFacts, build_plans
from airflow_provider_dtrain.core.scheduling.model import Placement

GPUS = st.lists(st.sampled_from([f"GPU-{number}" for number in range(8)]), min_size=1, max_size=8, unique=True)
DEVICES = st.lists(
    st.sampled_from([None, "GPU-0", "GPU-1", "GPU-2", "MIG-1", "MIG-2"]), min_size=1, max_size=5, unique=True
)
MODES = st.sampled_from(["all", "own"])


@given(GPUS)
def test_every_rank_sees_the_gpus_of_all_ranks_and_its_own_is_number_local_rank(gpus: list[str]) -> None:
    found = host_devices(gpus, "all")
    assert found.visible == (tuple(gpus),) * len(gpus)
    assert found.is_indexed
    assert (found.is_forced, notices({"a": found}), shares_devices({"a": found})) == (False, [], False)


@given(DEVICES, MODES)
def test_no_list_is_one_that_cuda_would_empty_and_each_has_the_device_of_its_rank(own: list[Any], mode: Any) -> None:
    found = host_devices(own, mode)
    for device, seen in zip(found.own, found.visible, strict=True):
        assert len(set(seen)) == len(seen)
        assert (device in seen) if device is not None else seen == ()
        # A process can use one MIG instance only, the first one.
        assert device is None or not device.startswith("MIG-") or seen == (device,)


@given(GPUS)
def test_with_own_each_rank_sees_its_gpu_alone(gpus: list[str]) -> None:
    found = host_devices(gpus, "own")
    assert found.visible == tuple((gpu,) for gpu in gpus)
    assert found.is_indexed is (len(gpus) == 1)
    assert notices({"a": found}) == []


def test_mig_instances_are_own_devices_and_gloo_is_used() -> None:
    found = {"a": host_devices(["MIG-1", "MIG-2"], "all"), "b": host_devices(["GPU-0", "GPU-1"], "all")}
    assert (found["a"].has_mig, found["a"].is_indexed, found["b"].is_indexed) == (True, False, True)
    assert shares_devices(found)
    mig, gloo = notices(found)
    assert mig == (
        "Host 'a': each rank sees only its own device, as with resources.visible_devices: own, because a process can "
        "use only one MIG instance."
    )
    assert gloo.startswith("MIG instances may be parts of one GPU, which NCCL refuses: dtrain.init() uses gloo")


def test_one_mig_instance_is_a_device_like_another() -> None:
    found = host_devices(["MIG-1"], "all")
    assert (found.visible, found.is_indexed, found.is_forced, shares_devices({"a": found})) == (
        (("MIG-1",),), True, False, False,
    )  # fmt: skip


def plans_of(devices: dict[str, list[str]], **changes: Any) -> dict[str, Any]:
    facts = LaunchFacts(
        run="t1.2.7", store="s", token=7, argv=["python", "train.py"],
        hosts={host: HostFacts(devices=dict(enumerate(of))) for host, of in devices.items()}, **changes,
    )  # fmt: skip
    return build_plans(Placement({host: tuple(range(len(of))) for host, of in devices.items()}), facts)


def test_a_plan_has_the_devices_that_a_rank_sees_beside_its_own() -> None:
    plan = plans_of({"a": ["GPU-7", "GPU-3"]})["a"]
    assert json.loads(json.dumps(plan)) == plan
    assert [(rank["local_rank"], rank["device"], rank["visible_devices"]) for rank in plan["ranks"]] == [
        (0, "GPU-7", ["GPU-7", "GPU-3"]),
        (1, "GPU-3", ["GPU-7", "GPU-3"]),
    ]
    own = plans_of({"a": ["GPU-7", "GPU-3"]}, visible_devices="own")["a"]
    assert [rank["visible_devices"] for rank in own["ranks"]] == [["GPU-7"], ["GPU-3"]]
