"""``airflow dtrain queue``: waiting and running gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._arguments import GANG_PREFIX as GANG
from airflow_provider_dtrain.cli._output import (
    UsageError,
    command,
    hint,
    placement_words,
    short_time,
    show,
    show_one,
    task_name,
    user,
)
from airflow_provider_dtrain.core.lifecycle.follower_words import reason_words, state_words

if TYPE_CHECKING:
    from argparse import Namespace
    from datetime import datetime

    from airflow_provider_dtrain.store.records.trials import TaskView


@command
def list_tasks(args: Namespace) -> None:
    """List waiting and running gangs, the running ones first."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    store = DtrainHook().store
    tasks = [task for task in store.queue_view.tasks() if args.pool in (None, task.pool)]
    tasks.sort(key=lambda task: (task.pool, task.state == "waiting", task.position or 0, task.since))
    silent = [store.queue_view.silent_since(task.heard_at) for task in tasks]
    make = _short if args.output == "table" else _row
    show(args, [make(task, since) for task, since in zip(tasks, silent, strict=True)], empty="No gangs wait or run.")
    trials = [task.trial_id for task in tasks if task.trial_id is not None]
    if trials:
        hint(f"airflow dtrain explain {trials[-1]}")
    elif not tasks:
        hint("airflow dtrain experiments create CONFIG, once airflow dtrain init has written its DAG")


@command
def set_task(args: Namespace) -> None:
    """Change the priority of a waiting or running gang, for instance of a sensor."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    if args.priority is None:
        raise UsageError("Nothing to set. Give --priority.")
    DtrainHook().store.control.set_gang_priority(args.gang, args.priority, user())
    show_one(args, {"gang": args.gang, "priority": args.priority})
    hint(f"airflow dtrain explain {GANG}{args.gang}")


def _row(task: TaskView, silent_since: datetime | None) -> dict[str, object]:
    key = task.key
    waits = task.position is not None
    place = task.position if silent_since is None else None
    return {
        "gang": task.allocation_id,
        "trial": task.trial_id,
        "experiment": task.experiment,
        "attempt": task.attempt_number,
        "task": task_name(key),
        "dag_run": key.run_id,
        "pool": task.pool,
        "slots": task.slots,
        "priority": task.priority,
        "state": task.state,
        "position": place,
        "hosts": placement_words(task.placement) or None,
        "since": task.since,
        "expected": (task.expected or None) if silent_since is None else None,
        "paused": task.paused,
        "unfollowed_since": silent_since,
        "reason": reason_words(task.reason, silent_since, waits=waits, paused=task.paused, trial_id=task.trial_id),
    }


def _short(task: TaskView, silent_since: datetime | None) -> dict[str, object]:
    """Return the columns that fit a terminal."""
    row = _row(task, silent_since)
    state = state_words(task.state, task.position, paused=task.paused, silent_since=silent_since)
    start = f"Start: {row['expected']}." if row["expected"] else ""
    why = f"{row['reason'] or ''} {start}".strip() or None
    return {
        "trial": task.trial_id if task.trial_id is not None else f"{GANG}{task.allocation_id}",
        "task": row["task"],
        "slots": f"{task.slots} of {task.pool}",
        "priority": task.priority,
        "state": state,
        "hosts": row["hosts"],
        "since": short_time(task.since),
        "reason": why,
    }
