"""Slots of a registered host after a new probe."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.hooks.hosts import slots_from_facts, slots_of_gpus_found

UUIDS = st.lists(st.sampled_from([f"GPU-{number}" for number in range(9)]), unique=True, max_size=9)


def facts(uuids: list[str]) -> dict[str, Any]:
    return {"gpus": [{"uuid": uuid, "name": "H100", "memory_bytes": 80} for uuid in uuids]}


@given(UUIDS.filter(bool), UUIDS, st.data())
def test_a_slot_keeps_its_gpu_as_long_as_the_host_has_it(before: list[str], now: list[str], data: Any) -> None:
    count = data.draw(st.integers(1, len(before)))
    _, slots = slots_from_facts(facts(before), str(count))
    found = slots_of_gpus_found(slots, facts(now))
    if len(now) < count:
        assert found is None
        return
    assert found is not None
    assert [slot.index for slot in found] == list(range(count))
    assert len({slot.device for slot in found}) == count
    for old, new in zip(slots, found, strict=True):
        assert new.device == old.device or old.device not in now
        assert new.device in now


def test_a_gpu_that_is_gone_is_replaced_by_one_without_a_slot() -> None:
    _, slots = slots_from_facts(facts(["GPU-0", "GPU-1", "GPU-2", "GPU-3"]), "3")
    found = slots_of_gpus_found(slots, facts(["GPU-0", "GPU-2", "GPU-3"]))
    assert found is not None
    assert [slot.device for slot in found] == ["GPU-0", "GPU-3", "GPU-2"]
