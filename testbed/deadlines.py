"""Short values for the engine's deadlines, in processes of tests and benchmarks."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta

#: Short values for deadlines that are not configurable: name of the constant in any module -> seconds.
SHORT: dict[str, float] = {
    "SILENCE_S": 8.0, "RECONNECT_MOST_S": 2.0, "STOP_MARGIN_S": 8.0, "FENCE_AGAIN_S": 2.0, "RECOVERY_EVERY_S": 2.0,
    "SILENT_AFTER": 12.0, "UNTAKEN_AFTER": 8.0, "EXCLUDED_FOR": 5.0, "EARLIEST_EVENT_S": 0.0, "LEASE_TTL": 10.0,
    "LEASE_TTL_S": 10.0, "AWAY_FOR": 3.0, "PROBE_EVERY": 2.0, "PROBE_AGAIN": 2.0, "PROBE_EVERY_S": 2.0,
    "STORE_PATIENCE_S": 60.0, "FENCE_WAIT_S": 8.0, "RECOVERY_BUSY_EVERY_S": 2.0, "CLAIM_S": 9.0, "CONNECT_S": 4.0,
    "PROBED_FOR": 2.0, "PROBED_AFTER": 2.0,
}  # fmt: skip


def shorten_deadlines() -> None:
    """Set each deadline in :data:`SHORT` in every loaded module."""
    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_provider_dtrain."):
            for constant in SHORT.keys() & vars(module).keys():
                old = getattr(module, constant)
                short = SHORT[constant]
                setattr(module, constant, timedelta(seconds=short) if isinstance(old, timedelta) else short)


def import_all() -> None:
    for module in ("engine.attempt.runner", "engine.upkeep.held_gangs", "engine.submission.search", "triggers.trial"):
        importlib.import_module(f"airflow_provider_dtrain.{module}")

    shorten_deadlines()
