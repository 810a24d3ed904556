"""Removal of hosts, and the attempts that hold slots there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import FENCE_WAIT_S
from airflow_provider_dtrain.engine.attempt.teardown import fence_arguments, survivors_text
from airflow_provider_dtrain.errors import ConflictError, DtrainError, NotNowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView, HostRecord
    from airflow_provider_dtrain.store.store import Store


def refuse_node(store: Store, record: HostRecord, request: str) -> None:
    """Raise an error if a host is the node of a job: its scheduler decides about it.

    :param request: in the infinitive, e.g. ``be drained``
    :raises ConflictError: it is one; the message has the command that ends its trial
    """
    if record.external_job_id is None:
        return
    job = store.external_jobs.get(record.external_job_id)
    trials = ", ".join(str(view.trial_id) for view in runs_on(store, record.name))
    end = f" To end it: airflow dtrain trials kill {trials}" if trials else ""
    raise ConflictError(
        f"Host '{record.name}' is a node of job {job.number} of pool '{record.pool}' and cannot {request}: the "
        f"scheduler of the pool gives out its slots, and it is removed with the job.{end}"
    )


def runs_on(store: Store, host: str) -> list[AttemptView]:
    """Return the attempts that hold slots on a host."""
    views = [
        store.attempts.get(task.attempt_id)
        for task in store.queue_view.tasks()
        if task.attempt_id is not None and host in task.placement
    ]
    return [view for view in views if host in view.held_hosts]


def ended_by_removal(store: Store, host: str, *, force: bool) -> list[AttemptView]:
    """Return the attempts that the removal of a host would end.

    :raises NotNowError: there are some, and ``force`` is not given
    :raises ConflictError: it is the node of a job
    """
    refuse_node(store, store.hosts.get(host), "be removed")
    running = runs_on(store, host)
    if running and not force:
        trials = ", ".join(f"trial {view.trial_id} of '{view.experiment}'" for view in running)
        raise NotNowError(
            f"Host '{host}' is held by {trials}. Wait for them (airflow dtrain hosts drain {host}), or kill them with "
            "--force."
        )
    return running


def remove_host(
    hook: DtrainHook, record: HostRecord, running: Sequence[AttemptView], by: str, warn: Callable[[str], None]
) -> None:
    """Kill the attempts on a host, wait until it confirms that no process of them is left, and remove it.

    :param running: of :func:`ended_by_removal`
    :param by: the user
    :param warn: receives a message for each attempt whose end is not confirmed
    """
    for view in running:
        hook.store.control.kill(view.trial_id, by)
    for view in running:
        if problem := _survival(hook, record, view):
            warn(
                f"Warning: host '{record.name}' did not confirm the end of {view.label}: {problem} Its processes there "
                f"end themselves {hook.settings.orphan_timeout_s:g} s after the last renewal."
            )
    hook.store.hosts.remove(record.name, force=bool(running), by=by)


def _survival(hook: DtrainHook, record: HostRecord, view: AttemptView) -> str:
    """Return why processes of an attempt may be left on a host, empty if none is."""
    try:
        link = hook.link(record)
        answer = link.call("fence", **fence_arguments(view, record.name)).result(FENCE_WAIT_S + 15)
    except DtrainError as error:
        return str(error)
    return "" if answer.get("clear") else f"processes survive: {survivors_text(answer)}"
