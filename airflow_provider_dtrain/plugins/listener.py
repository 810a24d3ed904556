"""Ends the held gangs of a DAG run that has ended.

Airflow calls this in its scheduler or API server, so nothing here waits: a thread marks the gangs in the provider's
store, and frees those that nobody uses. No host is asked; what the mark misses, the end of ``hold_for`` frees.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

log = logging.getLogger(__name__)

_ended: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
_working = threading.Lock()


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """Take the end of a DAG run."""
    _note(dag_run, "success")


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Take the end of a DAG run."""
    _note(dag_run, "failed")


def _note(dag_run: Any, state: str) -> None:
    _ended.put((str(dag_run.dag_id), str(dag_run.run_id), f"its DAG run has ended ({state})"))
    threading.Thread(target=_work, name="dtrain-gangs", daemon=True).start()


def _work() -> None:
    """End the gangs of every DAG run that was noted; one thread at a time."""
    with _working:
        while not _ended.empty():
            dag_id, run_id, because = _ended.get()
            try:
                end_gangs(dag_id, run_id, because)
            except Exception:
                log.warning("The held gangs of %s %s were not ended; they expire by themselves", dag_id, run_id,
                            exc_info=True)  # fmt: skip


def end_gangs(dag_id: str, run_id: str, because: str) -> list[int]:
    """End the gangs that tasks of a DAG run hold; return them. Blocks.

    A store that does not exist yet is not made.
    """
    from pathlib import Path

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    scheme, _, path = hook.settings.sql_alchemy_conn.partition(":///")
    if scheme.startswith("sqlite") and not Path("/" + path.lstrip("/")).exists():
        return []
    return hook.store.end_gangs_of_run(dag_id, run_id, because)
