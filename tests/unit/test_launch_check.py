"""Notices and refusals about devices before a launch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.launch.devices import VisibleDevices, host_devices
from airflow_provider_dtrain.engine.attempt.launch import _check_devices
from airflow_provider_dtrain.errors import ConfigError

PLACES = ("train.py:12", "model.py:3")


async def check(
    caplog: pytest.LogCaptureFixture,
    devices: Sequence[str],
    mode: VisibleDevices = "all",
    places: tuple[str, ...] = (),
    frameworks: tuple[str, ...] = (),
) -> list[str]:
    """Check a launch on one host, and return what is logged."""

    async def db(function: Any) -> Any:
        return function()

    rt: Any = SimpleNamespace(log=logging.getLogger("launch"), db=db)
    job: Any = SimpleNamespace(
        visible_devices=lambda _: {"ns-0": host_devices(devices, mode)}, local_rank_uses=lambda: (places, frameworks)
    )
    caplog.clear()
    await _check_devices(rt, SimpleNamespace(), job)  # type: ignore[arg-type]
    return [record.getMessage() for record in caplog.records]


async def test_code_that_works_under_torchrun_works_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert await check(caplog, ["GPU-0", "GPU-1"], places=PLACES) == []
    assert await check(caplog, ["GPU-0"], "own", places=PLACES) == []


async def test_code_that_takes_the_local_rank_for_a_device_is_named_where_it_is_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [warning] = await check(caplog, ["GPU-0", "GPU-1"], "own", places=PLACES)
    assert warning == (
        "train.py:12, model.py:3 takes LOCAL_RANK for the number of a device, which does not exist on host 'ns-0', "
        "where each rank sees only its own device, number 0. Use device 0, or set resources.visible_devices to all."
    )
    [warning] = await check(caplog, ["GPU-0", "GPU-1"], "own", frameworks=("accelerate",))
    assert warning.startswith("accelerate may take LOCAL_RANK for the number of a device")


async def test_code_that_cannot_work_with_mig_instances_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"train\.py:12, model\.py:3 takes LOCAL_RANK .* use device 0 of each rank"):
        await check(caplog, ["MIG-0", "MIG-1"], places=PLACES)
    assert len(await check(caplog, ["MIG-0", "MIG-1"])) == 2
