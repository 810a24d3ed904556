"""Trigger that polls the state of an experiment or a trial that was started elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any, TypedDict

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.engine.observation import Target, observe
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError, StoreError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.triggers._airflow import EARLIEST_EVENT_S


class ExperimentEvent(TypedDict, total=False):
    """Event of the end of a wait: an :class:`Observation` or a :class:`Failure`, as plain JSON."""

    observation: JsonObject
    failure: JsonObject


class ExperimentTrigger(BaseTrigger):
    """Trigger that waits until an experiment or a trial has reached a state, or can no longer reach it.

    It changes nothing, so any number of triggerers may run it at a time.

    :param target: a :class:`~airflow_provider_dtrain.engine.observation.Target` as plain JSON
    :param poke_interval: seconds between two polls
    """

    def __init__(self, target: Mapping[str, Any], poke_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.target = dict(target)
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"target": self.target, "poke_interval": self.poke_interval}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: ``{"observation": ...}`` or ``{"failure": ...}``."""
        started_at = time.monotonic()
        payload = await self._wait()
        await asyncio.sleep(max(0.0, EARLIEST_EVENT_S - (time.monotonic() - started_at)))
        yield TriggerEvent(payload)

    async def _wait(self) -> ExperimentEvent:
        target, hook = Target.from_dict(self.target), await in_thread(DtrainHook)
        while True:
            try:
                # The first access to the store imports and opens it.
                found = await in_thread(lambda: observe(hook.store, target))
            except StoreError as error:
                self.log.warning("The store is not available. The next poll is in %g s: %s", self.poke_interval, error)
            except DtrainError as error:
                return {"failure": vars(Failure.of(error))}
            else:
                if found.verdict != "waiting":
                    return {"observation": asdict(found)}
            await asyncio.sleep(self.poke_interval)
