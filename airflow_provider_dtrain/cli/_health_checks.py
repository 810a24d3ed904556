"""Checks of ``doctor`` for settings that would keep a gang from surviving a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine.operations.host_checks import Line, line
from airflow_provider_dtrain.errors import NotNowError, UsageError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

#: Margin of a lease over the time that Airflow needs to notice a dead worker.
LEASE_MARGIN_S = 120.0
#: Number of latest trials whose tasks are checked.
RECENT_TRIALS = 200
#: An Airflow job without a heartbeat for longer than this is dead.
JOB_ALIVE = timedelta(minutes=5)
#: Executors whose tasks run on the scheduler's machine.
LOCAL_EXECUTORS = frozenset({"LocalExecutor", "SequentialExecutor"})
#: Name of the check of the DAG that starts experiments.
EXPERIMENT_DAG = "experiment dag"


def settings_lines(hook: DtrainHook) -> Iterator[Line]:
    """Yield checks of the options that matter for gangs that lose their follower."""
    from airflow.sdk.configuration import conf

    heartbeat_s = conf.getfloat("scheduler", "task_instance_heartbeat_timeout", fallback=300.0)
    yield lease_line(hook.settings.orphan_timeout_s, heartbeat_s)
    days = hook.settings.retention_days
    message = f"{days} days; removed by: airflow dtrain gc"
    if not days:
        message = (
            "0: old data is never removed and disks fill up. Set [dtrain] retention_days and run: airflow dtrain gc"
        )
    yield line("retention", bool(days), message)
    if conf.getboolean("database", "sql_alchemy_pool_enabled", fallback=True):
        size = conf.getint("database", "sql_alchemy_pool_size", fallback=5)
        overflow = conf.getint("database", "sql_alchemy_max_overflow", fallback=10)
        yield from connection_lines(
            conf.get("database", "sql_alchemy_conn", fallback=""),
            tasks=conf.getint("core", "parallelism", fallback=32),
            connections=None if size == 0 or overflow < 0 else size + overflow,
        )


def connection_lines(url: str, *, tasks: int, connections: int | None) -> Iterator[Line]:
    """Yield the check that tasks which start together leave a connection to the API server of an Airflow on SQLite.

    Each start waits for the lock of SQLite with a connection. If none is left, the API server waits half a minute for
    one in the thread of its event loop, which the holder of the lock needs to end. Meanwhile the scheduler gives up.

    :param url: of Airflow's database
    :param tasks: ``[core] parallelism``
    :param connections: most connections of a process; None = no limit
    """
    if not url.startswith("sqlite"):
        return
    if connections is None or connections > tasks:
        number = "any number of" if connections is None else str(connections)
        yield line("airflow connections", True, f"SQLite, {number} connections for {tasks} tasks at a time")
        return
    yield line(
        "airflow connections",
        False,
        f"SQLite, {connections} connections for {tasks} tasks at a time: tasks that start together can stop the API "
        "server for 30 s, and the scheduler with it. Set [database] sql_alchemy_max_overflow to -1, or use PostgreSQL.",
    )


def lease_line(orphan_timeout_s: float, heartbeat_s: float) -> Line:
    """Return the check that leases outlive the time in which Airflow notices a dead worker.

    :param heartbeat_s: ``[scheduler] task_instance_heartbeat_timeout``
    """
    needed_s = heartbeat_s + LEASE_MARGIN_S
    if not orphan_timeout_s:
        message = "0: a run without a follower never ends itself, and a host that stays away keeps its slots"
        return line("leases", True, message)
    if orphan_timeout_s <= needed_s:
        return line(
            "leases",
            False,
            f"orphan_timeout {orphan_timeout_s:g} s is not above {needed_s:g} s ([scheduler] task_instance_heartbeat_"
            f"timeout {heartbeat_s:g} s + {LEASE_MARGIN_S:g} s): a run ends itself before Airflow has noticed that its "
            f"worker is dead. Set [dtrain] orphan_timeout to {needed_s + 60:.0f} or more.",
        )
    return line("leases", True, f"orphan_timeout {orphan_timeout_s:g} s, above {needed_s:g} s")


def store_lines(hook: DtrainHook) -> Iterator[Line]:
    """Yield checks of the hold and of Airflow's own database. The store has been checked before."""
    if (hold := hook.store.maintenance.get()) is not None:
        words = f"held until {hold.until:%Y-%m-%d %H:%MZ} by {hold.by}" + (f": {hold.reason}" if hold.reason else "")
        yield line("hold", True, words + ". To end it, run: airflow dtrain maintenance end")
    database = database_line()
    yield database
    if not database["ok"]:
        # The other checks read its tables.
        return
    for check, look in (("store: machines", _machines), ("airflow pools", _pools), (EXPERIMENT_DAG, _experiment_dag)):
        try:
            yield from look(hook)
        except Exception as error:
            # Airflow's models change between versions. These checks are only advice, so a failure is not an error.
            yield line(check, True, f"not checked: {_brief(error)}")


def database_line() -> Line:
    """Return the check that Airflow's database has the tables of this Airflow."""
    from airflow.utils.db import check_migrations

    try:
        check_migrations(0)
    except TimeoutError:
        words = "it lacks tables of this Airflow. Create or upgrade them with: airflow db migrate"
        return line("airflow database", False, words)
    except Exception as error:
        words = f"it cannot be read: {_brief(error)}. Check [database] sql_alchemy_conn"
        return line("airflow database", False, words)
    return line("airflow database", True, "it has the tables of this Airflow")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _experiment_dag(hook: DtrainHook) -> Iterator[Line]:
    from airflow_provider_dtrain.cli.experiments_create import require_ready
    from airflow_provider_dtrain.dags import DAG_ID

    try:
        require_ready(DAG_ID)
    except (NotNowError, UsageError) as error:
        # A site may do without.
        yield line(EXPERIMENT_DAG, True, f"none; only experiments without a DAG of their own need it. {error}")
    else:
        yield line(EXPERIMENT_DAG, True, f"{DAG_ID}; experiments can be created from the command line and the pages")


def _machines(hook: DtrainHook) -> Iterator[Line]:
    from airflow.sdk.configuration import conf

    executors = conf.get("core", "executor", fallback="LocalExecutor").split(",")
    yield machines_line(hook.settings.sql_alchemy_conn, executors, _other_machines())


def machines_line(url: str, executors: list[str], machines: list[str]) -> Line:
    """Return the check that every process of Airflow can reach the store.

    :param executors: of ``[core] executor``
    :param machines: machines, except this one, on which schedulers and triggerers run
    """
    names = [executor.split(":")[-1].strip().rpartition(".")[2] for executor in executors]
    remote = [name for name in names if name not in LOCAL_EXECUTORS]
    if not url.startswith("sqlite") or not (remote or machines):
        return line("store: machines", True, "SQLite, one machine" if url.startswith("sqlite") else "a database server")
    why = f"the executor {remote[0]} runs tasks on other machines" if remote else f"Airflow also runs on {machines[0]}"
    return line(
        "store: machines",
        False,
        f"SQLite serves one machine, but {why}: each machine would have its own queue and could not take over "
        "runs of another. Set [dtrain] sql_alchemy_conn to a PostgreSQL database.",
    )


def _other_machines() -> list[str]:
    from airflow.jobs.job import Job
    from airflow.utils.net import get_hostname
    from airflow.utils.session import create_session
    from sqlalchemy import select

    kinds = ("TriggererJob", "SchedulerJob")
    alive = Job.latest_heartbeat > datetime.now(UTC) - JOB_ALIVE
    query = select(Job.hostname).where(Job.job_type.in_(kinds), Job.state == "running", alive).distinct()
    with create_session() as session:
        return sorted(str(name) for name in session.scalars(query) if name != get_hostname())


def _pools(hook: DtrainHook) -> Iterator[Line]:
    tasks = {(trial.key.dag_id, trial.key.task_id) for trial in hook.store.trials.list(limit=RECENT_TRIALS)}
    yield pools_line(_counting_pools(tasks) if tasks else {})


def pools_line(counting: Mapping[str, str]) -> Line:
    """Return the check that deferred tasks of trials do not occupy slots of their Airflow pool.

    :param counting: Airflow pool that counts deferred tasks -> a trial's task in it
    """
    if not counting:
        return line("airflow pools", True, "no task of a trial is in a pool that counts deferred tasks")
    pool, task = next(iter(counting.items()))
    return line(
        "airflow pools",
        False,
        f"task {task} is in Airflow's pool '{pool}', which counts deferred tasks: waiting gangs fill it, and a retry "
        "that should take over a running gang gets no slot. Move trials to a pool without 'include deferred'.",
    )


def _counting_pools(tasks: set[tuple[str, str]]) -> dict[str, str]:
    from airflow.models import Pool
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select, tuple_

    of_trials = tuple_(TaskInstance.dag_id, TaskInstance.task_id).in_(sorted(tasks))
    query = (
        select(TaskInstance.pool, TaskInstance.dag_id, TaskInstance.task_id)
        .join(Pool, Pool.pool == TaskInstance.pool)
        .where(of_trials, Pool.include_deferred)
        .distinct()
    )
    with create_session() as session:
        return {pool: f"{dag_id}.{task_id}" for pool, dag_id, task_id in session.execute(query)}
