"""Follower of one host, without the follower of the whole gang."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from airflow_provider_dtrain.engine.attempt.gang import Gang, GangEnd
from airflow_provider_dtrain.engine.attempt.stream import HostFollower


def host_follower(rt: Any, host: str, *, run: str, plan: Any, quota: Any = None) -> HostFollower:
    """Return a follower whose gang takes every event and does nothing with it."""
    view: Any = SimpleNamespace(plan=plan)
    gang = Gang(view=view, run_name=run, end=GangEnd(), changed=asyncio.Event())
    return HostFollower(
        rt, gang, host, quota=quota, on_link=lambda _: None, on_progress=lambda *_: None, on_event=lambda *_: None
    )
