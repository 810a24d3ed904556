"""Reports of ``doctor`` for made-up installations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.cli._health_checks import (
    connection_lines,
    database_line,
    lease_line,
    machines_line,
    pools_line,
    store_lines,
)
from airflow_provider_dtrain.engine.operations.host_checks import host_lines

POSTGRESQL = "postgresql+psycopg://u@db/dtrain"


@pytest.mark.parametrize(
    ("orphan_timeout_s", "heartbeat_s", "ok"),
    [(900, 300, True), (420, 300, False), (421, 300, True), (100, 300, False), (900, 800, False), (0, 300, True)],
)
def test_a_lease_must_outlive_the_time_in_which_airflow_notices_a_dead_worker(orphan_timeout_s, heartbeat_s, ok):
    found = lease_line(orphan_timeout_s, heartbeat_s)
    assert found["ok"] is ok
    if not ok:
        assert f"orphan_timeout to {heartbeat_s + 180} or more" in found["message"]


@pytest.mark.parametrize(
    ("url", "tasks", "connections", "ok"),
    [
        ("sqlite:////x.db", 32, 15, [False]),
        ("sqlite:////x.db", 15, 15, [False]),
        ("sqlite:////x.db", 14, 15, [True]),
        ("sqlite:////x.db", 32, None, [True]),
        (POSTGRESQL, 32, 15, []),
    ],
)
def test_an_airflow_on_sqlite_needs_more_connections_than_tasks(url, tasks, connections, ok):
    found = list(connection_lines(url, tasks=tasks, connections=connections))
    assert [one["ok"] for one in found] == ok
    for one in found:
        assert one["ok"] or "sql_alchemy_max_overflow to -1" in one["message"]


@pytest.mark.parametrize(
    ("url", "executors", "others", "ok"),
    [
        ("sqlite:////x.db", ["LocalExecutor"], [], True),
        ("sqlite:////x.db", ["LocalExecutor"], ["trigger-2"], False),
        ("sqlite:////x.db", ["LocalExecutor", "CeleryExecutor"], [], False),
        ("sqlite:////x.db", ["team1:airflow.providers.celery.executors.celery_executor.CeleryExecutor"], [], False),
        ("sqlite:////x.db", ["airflow.executors.local_executor.LocalExecutor"], [], True),
        (POSTGRESQL, ["CeleryExecutor"], ["trigger-2"], True),
    ],
)
def test_a_file_as_the_store_serves_one_machine(url, executors, others, ok):
    found = machines_line(url, executors, others)
    assert found["ok"] is ok
    assert ok or "PostgreSQL database" in found["message"]


def test_a_pool_that_counts_deferred_tasks_is_named_with_a_task_in_it():
    assert pools_line({})["ok"]
    found = pools_line({"gpu": "train.fit"})
    assert not found["ok"]
    assert "task train.fit is in Airflow's pool 'gpu'" in found["message"]


@pytest.mark.parametrize(
    ("facts", "checks"),
    [
        ({}, []),
        ({"linger": None, "kill_user_processes": None, "state_dir_fs": "ext4"}, []),
        ({"linger": True, "kill_user_processes": True}, []),
        ({"linger": False, "kill_user_processes": False}, []),
        ({"linger": False, "kill_user_processes": True}, ["h: logout"]),
        ({"state_dir_fs": "nfs4"}, ["h: state_dir"]),
    ],
)
def test_a_host_that_would_end_runs_at_logout_or_shares_its_locks_is_named(facts, checks):
    found = list(host_lines("h", facts, {"nfs4"}.__contains__))
    assert [one["check"] for one in found] == checks
    assert not any(one["ok"] for one in found)


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "it has the tables of this Airflow"),
        (TimeoutError("unapplied migrations"), "Create or upgrade them with: airflow db migrate"),
        (OSError("refused\nlong"), "it cannot be read: OSError: refused. Check [database] sql_alchemy_conn"),
    ],
)
def test_a_database_of_airflow_without_its_tables_is_one_check_with_the_command(error, words, monkeypatch):
    def check(timeout):
        if error is not None:
            raise error

    monkeypatch.setattr("airflow.utils.db.check_migrations", check)
    found = database_line()
    assert (found["ok"], found["check"]) == (error is None, "airflow database")
    assert found["message"].endswith(words)
    store = SimpleNamespace(maintenance=SimpleNamespace(get=lambda: None))
    # The checks that read its tables are left out.
    assert error is None or list(store_lines(SimpleNamespace(store=store))) == [found]
