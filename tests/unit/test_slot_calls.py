"""The engine requests and releases slots through its port only."""

from __future__ import annotations

import re
from pathlib import Path

import airflow_provider_dtrain

PACKAGE = Path(airflow_provider_dtrain.__file__).parent
#: Methods of the store that request, grant, take up or release slots.
OF_SLOTS = re.compile(r"\.(?:queue\.(?:renew|schedule|take_up|release)|gangs\.(?:renew|take_up|use))\b")
FLOORS = ("engine", "triggers", "sensors", "operators")


def test_only_the_implementations_of_the_port_call_the_store_for_slots() -> None:
    calling = {
        str(path.relative_to(PACKAGE))
        for floor in FLOORS
        for path in (PACKAGE / floor).rglob("*.py")
        if OF_SLOTS.search(path.read_text())
    }
    port = {f"engine/slots/{name}.py" for name in ("external_slots", "gang_slots", "queue_slots")}
    # A check of hosts holds slots that no gang gets.
    assert calling == {*port, "engine/operations/host_rates.py"}
