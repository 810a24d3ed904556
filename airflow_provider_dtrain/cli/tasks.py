"""``airflow dtrain task``: every gang that waits or runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli.console import command, hint, placement_words, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.records import TaskView


@command
def list_tasks(args: Namespace) -> None:
    """List waiting and running gangs, those that run first."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    tasks = [task for task in DtrainHook().store.tasks() if args.pool in (None, task.pool)]
    tasks.sort(key=lambda task: (task.pool, task.state == "waiting", task.position or 0, task.since))
    show(args, [_row(task) for task in tasks], empty="No gang waits or runs.")
    trials = [task.trial_id for task in tasks if task.trial_id is not None]
    if trials:
        hint(f"airflow dtrain explain {trials[-1]}")


def _row(task: TaskView) -> dict[str, object]:
    key = task.key
    mapped = f"[{key.map_index}]" if key.map_index >= 0 else ""
    return {
        "trial": task.trial_id,
        "experiment": task.experiment,
        "attempt": task.attempt_number,
        "task": f"{key.dag_id}.{key.task_id}{mapped}",
        "dag_run": key.run_id,
        "pool": task.pool,
        "slots": task.slots,
        "priority": task.priority,
        "state": task.state if task.position is None else f"{task.state} ({task.position}.)",
        "hosts": placement_words(task.placement) or None,
        "since": task.since,
        "expected": task.expected or None,
        "paused": task.paused,
        "reason": task.reason or None,
    }
