"""Helpers for operators and sensors: error conversion, and facts about the task instance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_provider_dtrain.resources.provenance import DagBundle
    from airflow_provider_dtrain.store.records.trials import TrialKey
    from airflow_provider_dtrain.store.store import Store


def as_airflow(error: DtrainError) -> Exception:
    """Return the exception that the task should raise.

    An error of kind ``user`` fails the task without a retry, since a retry helps only against infra and platform
    failures.
    """
    return error if error.kind != "user" else AirflowFailException(str(error))


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Make errors of kind ``user`` fail the task without a retry."""
    try:
        yield
    except DtrainError as error:
        if error.kind != "user":
            raise
        # Its message says everything. The task log shows a traceback for each error of a chain.
        raise as_airflow(error) from None


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """Facts about a running task instance, read from Airflow's context once."""

    #: Key of the trial. Automatic retries keep it, a clear changes it.
    key: TrialKey
    #: Airflow's name of the user who triggered the DAG run; of a scheduled run the owner of the task in the DAG.
    owner: str
    #: Folder of the DAG file, to which paths are relative.
    folder: Path
    #: Airflow's bundle of the DAG file, None if the context does not have it.
    bundle: DagBundle | None
    #: Airflow does not run the task again after an error of this try.
    is_last_try: bool
    #: Of the span of the task, None without OpenTelemetry.
    trace_parent: Any
    #: None: the task instance has no name of its own.
    map_index_template: str | None
    #: Airflow's context, for the templates of notifiers and for links.
    context: Context = field(repr=False)

    def is_final(self, error: BaseException) -> bool:
        """Return whether Airflow does not run the task again after this error."""
        return self.is_last_try or isinstance(error, AirflowFailException)


def task_facts(context: Context) -> TaskFacts:
    """Return the facts about the task instance of a context."""
    from airflow_provider_dtrain.store.records.trials import TrialKey

    ti = context["ti"]
    return TaskFacts(
        key=TrialKey(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=ti.map_index if ti.map_index is not None else -1,
            max_tries=ti.max_tries,
        ),
        owner=owner_of(context),
        folder=Path(context["dag"].fileloc).parent,
        bundle=_bundle_of(ti),
        is_last_try=getattr(ti, "try_number", 1) > ti.max_tries,
        trace_parent=getattr(ti, "context_carrier", None),
        map_index_template=context.get("map_index_template"),
        context=context,
    )


def owner_of(context: Context) -> str:
    """Return the user to whom an experiment of a task belongs.

    Airflow keeps the user for runs that are triggered by its API, its pages or its commands, and for runs that a task
    of such a run triggers. A run by schedule, asset or backfill without a user has none.
    """
    named = getattr(context.get("dag_run"), "triggering_user_name", None)
    return str(named or getattr(context.get("task"), "owner", None) or "")


def _bundle_of(ti: Any) -> DagBundle | None:
    """Return the bundle of a task instance.

    A DAG run has a version of its bundle if Airflow keeps versions. Otherwise the bundle may know its present one.
    """
    from airflow_provider_dtrain.resources.provenance import DagBundle

    bundle = getattr(ti, "bundle_instance", None)
    if bundle is None:
        return None
    version = bundle.version
    if version is None:
        # A bundle is a plug-in: its error must not fail a task that does not need the version.
        with suppress(Exception):
            version = bundle.get_current_version()
    return DagBundle(name=str(bundle.name), version=None if version is None else str(version))


def show_map_index_name(name: str) -> None:
    """Show a name for this mapped task instance now. Airflow itself renders its template only before and after a task.

    Only the process of a task can do this. Airflow has no public call for it, so a failure is ignored.
    """
    if not name:
        return
    with suppress(Exception):
        from airflow.sdk.execution_time import task_runner
        from airflow.sdk.execution_time.comms import SetRenderedMapIndex

        task_runner.SUPERVISOR_COMMS.send(SetRenderedMapIndex(rendered_map_index=name))


def log_mistaken_pool(task: BaseOperator, host_pool: str | None, store: Store) -> None:
    """Log a warning if Airflow's pool of a task has the name of a pool of hosts, and the task names no such pool."""
    if not host_pool and task.pool in {pool.name for pool in store.pools.list()}:
        task.log.warning(
            "pool=%r is Airflow's pool of this task. If it should name the pool of hosts, use host_pool=%r.",
            task.pool,
            task.pool,
        )
