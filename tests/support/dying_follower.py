"""Follows a trial and dies at the point that ``FOLLOWER_FAULT`` names: ``python -m tests.support.dying_follower``.

Arguments: address of the store, folder of checkpoint copies, id of the trial.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings

POINT = os.environ["FOLLOWER_FAULT"]


class Dying(Runtime):
    """Runtime of a follower that ends the process before or after the command ``decide``."""

    async def call(self, host: str, command: str, /, **arguments: Any) -> dict[str, Any]:
        if command == "decide" and POINT == "before the answer":
            os._exit(9)
        found = await super().call(host, command, **arguments)
        if command == "decide" and POINT == "after the answer":
            os._exit(9)
        return found


async def main() -> None:
    url, folder, trial_id = sys.argv[1:]
    options = dataclasses.replace(settings(), sql_alchemy_conn=url, checkpoint_dir=Path(folder), kill_grace_s=2.0)
    log = TaskLog(logging.getLogger("dying"), 10**6)
    runtime = await take_over(DtrainHook(options), int(trial_id), log, watcher="dying")
    runtime.__class__ = Dying
    await AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook))


if __name__ == "__main__":
    asyncio.run(main())
