"""The trigger's state travels through Airflow's database and comes back the same."""

from __future__ import annotations

from importlib import import_module

from airflow_provider_dtrain.triggers.trial import TrialTrigger


def test_a_trigger_is_rebuilt_from_what_it_serialises_to() -> None:
    path, kwargs = TrialTrigger(trial_id=7, deadline=12.5).serialize()
    module, name = path.rsplit(".", 1)
    rebuilt = getattr(import_module(module), name)(**kwargs)
    assert isinstance(rebuilt, TrialTrigger)
    assert rebuilt.serialize() == (path, kwargs)


async def test_a_trigger_that_has_fired_kills_nothing() -> None:
    trigger = TrialTrigger(trial_id=7)
    trigger._fired = True
    await trigger.on_kill()
