"""Settings from the ``[dtrain]`` section of Airflow's configuration."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

SECTION = "dtrain"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of ``[dtrain]`` with their defaults filled in."""

    sql_alchemy_conn: str
    #: Folder on the control side for copies of checkpoints.
    checkpoint_dir: Path
    #: Places in object storage from which the API server sends checkpoints, besides those that need no permission.
    download_storage: tuple[str, ...]
    #: Folder for payloads on the hosts, relative to the account's home.
    remote_dir: str
    #: Root-owned folder on the hosts for the locks of all accounts; empty: the supervisor's default.
    lock_dir: str
    #: A run whose lease was not renewed for this long ends itself; 0 = never.
    orphan_timeout_s: float
    #: Time between SIGTERM and SIGKILL.
    kill_grace_s: float
    #: Log bytes kept per rank on the host.
    log_limit_bytes: int
    #: Bytes per second of rank 0's log that reach the task log.
    task_log_rate_bytes_per_s: int
    #: Log records per second in which one process sends lines of rank 0 to Airflow, for all its trials together.
    task_log_records_per_s: float
    #: Time between two polls of the queue while waiting.
    pass_interval_s: float
    #: A trial that started in the worker defers when it still runs after this time.
    defer_after_s: float
    #: Checkpoints above this size stay on the host that wrote them.
    checkpoint_copy_limit_bytes: int
    #: Maximum size of one part of a batch inference that is fetched, and of all parts of an output folder.
    collect_part_limit_bytes: int
    collect_limit_bytes: int
    #: Time between two copies of a plain script's outputs while it runs; 0 = only at the end of an attempt.
    output_sync_period_s: float
    #: Maximum size of all copies of one trial together.
    trial_copy_limit_bytes: int
    #: Maximum number of checkpoints of one trial that are copied.
    trial_copies: int
    #: Age from which ended runs and their data may be garbage-collected; 0 = never.
    retention_days: int
    #: Age from which telemetry is removed from the store; 0 = never.
    telemetry_days: int
    #: Limits on the data that the ranks of one attempt may store; 0 = no limit. Rows of training and of validation
    #: metrics are counted separately.
    attempt_events_limit: int
    attempt_checkpoints_limit: int
    attempt_metric_rows_limit: int
    attempt_metric_names_limit: int
    #: Interpreter of host ``local``.
    local_python: str
    #: Whether users may run commands in the environment of ranks.
    allow_exec: bool = False


def airflow_home() -> Path:
    """Return AIRFLOW_HOME."""
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser().absolute()


def settings() -> Settings:
    """Return the current options from Airflow's configuration.

    :raises airflow.exceptions.AirflowConfigException: an option has a value of the wrong type
    """
    from airflow.sdk.configuration import conf

    home = airflow_home()
    url = conf.get(SECTION, "sql_alchemy_conn", fallback="") or f"sqlite:///{quote(str(home / 'dtrain.db'))}"
    folder = conf.get(SECTION, "checkpoint_dir", fallback="") or str(home / "dtrain" / "checkpoints")
    return Settings(
        sql_alchemy_conn=url,
        checkpoint_dir=Path(folder).expanduser(),
        download_storage=tuple(
            one.strip() for one in conf.get(SECTION, "download_storage", fallback="").split(",") if one.strip()
        ),
        remote_dir=conf.get(SECTION, "remote_dir", fallback="~/.dtrain").removeprefix("~/"),
        lock_dir=conf.get(SECTION, "lock_dir", fallback=""),
        orphan_timeout_s=conf.getfloat(SECTION, "orphan_timeout", fallback=900.0),
        kill_grace_s=conf.getfloat(SECTION, "kill_grace_s", fallback=30.0),
        log_limit_bytes=conf.getint(SECTION, "log_limit", fallback=256 * 1024 * 1024),
        task_log_rate_bytes_per_s=conf.getint(SECTION, "task_log_rate", fallback=4_000_000),
        task_log_records_per_s=conf.getfloat(SECTION, "task_log_records", fallback=80.0),
        pass_interval_s=conf.getfloat(SECTION, "pass_interval", fallback=1.0),
        defer_after_s=conf.getfloat(SECTION, "defer_after", fallback=20.0),
        checkpoint_copy_limit_bytes=conf.getint(SECTION, "checkpoint_copy_limit", fallback=2 * 1024**3),
        collect_part_limit_bytes=conf.getint(SECTION, "collect_part_limit", fallback=2 * 1024**3),
        collect_limit_bytes=conf.getint(SECTION, "collect_limit", fallback=100 * 1024**3),
        output_sync_period_s=conf.getfloat(SECTION, "output_sync_period", fallback=300.0),
        trial_copy_limit_bytes=conf.getint(SECTION, "trial_copy_limit", fallback=20 * 1024**3),
        trial_copies=conf.getint(SECTION, "trial_copies", fallback=100),
        retention_days=conf.getint(SECTION, "retention_days", fallback=30),
        telemetry_days=conf.getint(SECTION, "telemetry_days", fallback=30),
        attempt_events_limit=conf.getint(SECTION, "attempt_events_limit", fallback=500_000),
        attempt_checkpoints_limit=conf.getint(SECTION, "attempt_checkpoints_limit", fallback=10_000),
        attempt_metric_rows_limit=conf.getint(SECTION, "attempt_metric_rows_limit", fallback=200_000),
        attempt_metric_names_limit=conf.getint(SECTION, "attempt_metric_names_limit", fallback=1000),
        local_python=sys.executable,
        allow_exec=conf.getboolean(SECTION, "allow_exec", fallback=False),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def as_server_process() -> None:
    """Let this process read connections from Airflow's metadata database.

    Only commands that a user starts need this. Tasks and triggers get connections from Airflow.
    """
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
