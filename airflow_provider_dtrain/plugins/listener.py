"""Listener for the start of Airflow's components and for the end of DAG runs.

A component that starts imports the modules that tasks need and packs the archives for hosts, so that the processes that
it forks inherit them.

When a DAG run ends, its held gangs are ended. Airflow calls the listener in its scheduler or API server, which must not
wait. A thread therefore marks the gangs in the provider's store, and releases those that no task uses. It contacts no
host. The end of ``hold_for`` releases the gangs that the thread misses.
"""

from __future__ import annotations

import importlib
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

log = logging.getLogger(__name__)

#: These are nearly all modules that a task imports, except PyTorch and SSH. They cost a third of a second of CPU.
NEEDED_BY_TASKS = (
    "airflow_provider_dtrain.core.code_files",
    "airflow_provider_dtrain.core.config",
    "airflow_provider_dtrain.engine.attempt.runner",
    "airflow_provider_dtrain.engine.attempt.siblings",
    "airflow_provider_dtrain.engine.submission.search",
    "airflow_provider_dtrain.engine.attempt.source_checkpoint",
    "airflow_provider_dtrain.core.diagnosis.report",
    "airflow_provider_dtrain.engine.diagnosis",
    "airflow_provider_dtrain.engine.operations.follower",
    "airflow_provider_dtrain.engine.submission.submit",
    "airflow_provider_dtrain.engine.submission.entry",
    "airflow_provider_dtrain.engine.submission.granted",
    "airflow_provider_dtrain.hooks.dtrain",
    "airflow_provider_dtrain.hosts.channel.link_pool",
    "airflow_provider_dtrain.hosts.payload",
    "airflow_provider_dtrain.hosts.transport.local",
    "airflow_provider_dtrain.hosts.work_tree",
    "airflow_provider_dtrain.notifications.serialization",
    "airflow_provider_dtrain.operators.search",
    "airflow_provider_dtrain.operators.trial",
    "airflow_provider_dtrain.store.database.schema",
    "airflow_provider_dtrain.store.store",
    "airflow_provider_dtrain.task_groups",
    "airflow_provider_dtrain.triggers.trial",
)

_ended: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
_working = threading.Lock()


@hookimpl
def on_starting(component: Any) -> None:
    """Import the modules and pack the archives that tasks need, so that forked processes inherit them.

    The scheduler forks a process for each task, the triggerer for each trigger loop, and the DAG processor for each
    file. With an executor whose workers are not forked by the scheduler, this has no effect.

    :param component: a ``Job`` in these components; Airflow also calls this in every task, with another object
    """
    if type(component).__name__ != "Job":
        return
    for module in NEEDED_BY_TASKS:
        try:
            importlib.import_module(module)
        except Exception:
            log.warning("%s cannot be imported; tasks that need it will fail with this error", module, exc_info=True)
            return
    try:
        _pack()
    except Exception as error:
        log.warning("The archives for hosts cannot be packed; trials will fail with this error: %s", error)
    try:
        _import_driver()
    except DtrainError as error:
        log.warning("The provider's store is not configured correctly: %s", error)


def _pack() -> None:
    """Pack the library and the supervisor. This costs an eighth of a second of CPU."""
    from airflow_provider_dtrain.hosts.payload import library, supervisor

    library()
    supervisor()


def _import_driver() -> None:
    """Import the store's database driver, without connecting to the database.

    :raises StoreError: the URL is wrong, or its driver is missing
    """
    from airflow_provider_dtrain.hooks.settings import settings
    from airflow_provider_dtrain.store.database.connections import make_engine, parse_url

    make_engine(parse_url(settings().sql_alchemy_conn)).dispose()


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """End the held gangs of a DAG run that succeeded, in a thread."""
    _note(dag_run, "success")


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """End the held gangs of a DAG run that failed, in a thread."""
    _note(dag_run, "failed")


def _note(dag_run: Any, state: str) -> None:
    _ended.put((str(dag_run.dag_id), str(dag_run.run_id), f"its DAG run has ended ({state})"))
    threading.Thread(target=_work, name="dtrain-gangs", daemon=True).start()


def _work() -> None:
    """End the gangs of all queued DAG runs. Only one thread does so at a time."""
    with _working:
        while not _ended.empty():
            dag_id, run_id, because = _ended.get()
            try:
                end_gangs(dag_id, run_id, because)
            except Exception:
                log.warning(
                    "Held gangs of DAG %s, run %s were not ended; they expire after hold_for",
                    dag_id,
                    run_id,
                    exc_info=True,
                )


def end_gangs(dag_id: str, run_id: str, because: str) -> list[int]:
    """End the gangs that tasks of a DAG run hold, and return their IDs. Blocks.

    A store that does not exist yet is not created.
    """
    from pathlib import Path

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    scheme, _, path = hook.settings.sql_alchemy_conn.partition(":///")
    if scheme.startswith("sqlite") and not Path("/" + path.lstrip("/")).exists():
        return []
    return hook.store.gangs.end_of_run(dag_id, run_id, because)
