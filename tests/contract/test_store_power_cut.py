"""A power cut after any fsync leaves a SQLite store with every grant that was reported, and no slot held twice."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.store.store import Store
from tests.support.power_cut import Recorder, Step, cuts

#: Grants gangs and ends some, and writes down what each call has reported, once it has.
WORK = """
import json, sys
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host

folder = sys.argv[1]
store = Store.open(f"sqlite:///{folder}/dtrain.db")
reported = open(f"{folder}/reported", "w", buffering=1)
store.hosts.add(host("h1", 4))
config = store.configs.put({}, origins={}).config_id
for number in range(6):
    key = TrialKey(dag_id="d", run_id="r", task_id=f"t{number}")
    ticket = store.trials.submit(
        TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=2, number=number)
    )
    print(json.dumps({"submitted": ticket.attempt_id}), file=reported)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    for allocation_id in store.queue.schedule("gpus").granted:
        print(json.dumps({"granted": allocation_id}), file=reported)
    if store.queue.take_up(ticket.attempt_id, watch):
        print(json.dumps({"taken_up": ticket.attempt_id}), file=reported)
        if number % 2:
            store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
            store.attempts.end(ticket.attempt_id, watch, state="completed")
            print(json.dumps({"ended": ticket.attempt_id}), file=reported)
store.close()
"""

HELD_TWICE = "SELECT host, slot FROM allocation_slots WHERE released_at IS NULL GROUP BY host, slot HAVING count(*) > 1"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Step]]:
    folder = tmp_path_factory.mktemp("store")
    root = folder / "data"
    root.mkdir()
    recorder = Recorder(folder / "recorder", root)
    environment = {**os.environ, **recorder.env, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", WORK, str(root)], env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return root, recorder.steps()


def reports(steps: list[Step]) -> list[tuple[str, int]]:
    """Return what calls had reported within these steps."""
    lines = [step.data for step in steps if step.kind == "W" and step.path.endswith("/reported")]
    return [pair for line in b"".join(lines).splitlines() for pair in json.loads(line).items()]


def missing(connection: sqlite3.Connection, told: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the reports that the store does not bear out."""
    found = {
        "submitted": {row[0] for row in connection.execute("SELECT id FROM attempts")},
        "granted": {row[0] for row in connection.execute("SELECT id FROM allocations WHERE token IS NOT NULL")},
        "taken_up": {row[0] for row in connection.execute("SELECT id FROM attempts WHERE state <> 'waiting'")},
        "ended": {row[0] for row in connection.execute("SELECT id FROM attempts WHERE ended_at IS NOT NULL")},
    }
    return [(kind, one) for kind, one in told if one not in found[kind]]


@pytest.mark.nightly
def test_no_reported_grant_is_lost_by_a_power_cut(recorded, tmp_path):
    root, steps = recorded
    told_at_all = reports(steps)
    assert {kind for kind, _ in told_at_all} == {"submitted", "granted", "taken_up", "ended"}
    looked = 0
    for number, disk in cuts(root, steps):
        told = reports(steps[:number])
        if not told and number % 10:
            continue
        image = disk.image(tmp_path / str(number))
        with sqlite3.connect(image / "dtrain.db") as connection:
            assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
            if told:
                assert missing(connection, told) == [], f"after {number} of {len(steps)} steps"
                assert connection.execute(HELD_TWICE).fetchall() == []
        connection.close()
        looked += 1
    assert looked > 20


def test_a_store_goes_on_after_a_power_cut(recorded, tmp_path):
    root, steps = recorded
    places = [number for number, _ in cuts(root, steps)]
    for number, disk in cuts(root, steps):
        if number in (places[0], places[len(places) // 2], places[-1]):
            store = Store.open(f"sqlite:///{disk.image(tmp_path / str(number))}/dtrain.db")
            assert [check for check in store.check() if not check.ok] == []
            store.close()
