"""A trigger's state travels through Airflow's database and comes back the same."""

from __future__ import annotations

from importlib import import_module

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_dtrain.triggers.gang import GangTrigger
from airflow_provider_dtrain.triggers.trial import TrialTrigger

TRIGGERS = [TrialTrigger(trial_id=7, deadline=12.5), GangTrigger(allocation_id=7, deadline=12.5)]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
def test_a_trigger_is_rebuilt_from_what_it_serialises_to(trigger: BaseTrigger) -> None:
    path, kwargs = trigger.serialize()
    module, name = path.rsplit(".", 1)
    rebuilt = getattr(import_module(module), name)(**kwargs)
    assert type(rebuilt) is type(trigger)
    assert rebuilt.serialize() == (path, kwargs)


@pytest.mark.parametrize("make", [lambda: TrialTrigger(trial_id=7), lambda: GangTrigger(allocation_id=7)])
async def test_a_trigger_that_has_fired_kills_nothing(make: object) -> None:
    trigger = make()  # type: ignore[operator]
    trigger._fired = True
    await trigger.on_kill()
