"""The verdict itself: it reports violations, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import attempts, events, metadata, streams
from airflow_provider_dtrain.supervisor.files.events import encode_event
from testbed.standalone import wait_until
from tests.faults import memory
from tests.faults.event_files import lost_tails
from tests.faults.memory import grown, peak_mib
from tests.faults.processes import UNKNOWN, Census, Checker

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = {"rank0.events": ["resumed", "report", "result"], "supervisor.events": ["started", "exit", "ended"]}


class Files:
    """One host, and a store with every event of the host's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "var-tmp" / "dtrain-0" / "machine" / "runs" / "0123abcd-t1.1.7"
        (self.folder / "rank0").mkdir(parents=True)
        self.engine = sa.create_engine("sqlite://")
        metadata.create_all(self.engine)
        self.world: Any = SimpleNamespace(
            store=SimpleNamespace(db=SimpleNamespace(engine=self.engine)),
            hosts=[SimpleNamespace(name="h0", init_pid=0, folder=folder)],
        )
        attempt = {"id": 3, "trial_id": 1, "number": 1, "allocation_id": 1, "state": "completed", "created_at": NOW}
        self.run(attempts.insert().values(**attempt))
        for stream, kinds in KINDS.items():
            path = self.folder / stream.replace("supervisor.events", "events.supervisor").replace(".events", "/events")
            path.write_bytes(b"".join(encode_event({"seq": i, "kind": kind}) for i, kind in enumerate(kinds, 1)))
            place = {"attempt_id": 3, "token": 7, "host": "h0", "stream": stream}
            self.run(streams.insert().values(**place, position=path.stat().st_size))
            for number, kind in enumerate(kinds, 1):
                self.run(events.insert().values(**place, seq=number, at=NOW, kind=kind, body={}))

    def run(self, statement: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(statement)

    def forget(self, *kinds: str) -> None:
        self.run(events.delete().where(events.c.kind.in_(kinds)))

    def end(self, state: str) -> None:
        self.run(attempts.update().values(state=state))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.engine.dispose()


def test_a_store_that_has_everything_is_well(files: Files) -> None:
    assert lost_tails(files.world) == []


def test_the_lost_end_of_a_rank_s_file_is_found(files: Files) -> None:
    files.forget("result")
    assert lost_tails(files.world) == ["events of (3, 7, 'h0', 'rank0.events'): the store ends with 2, the file with 3"]


def test_the_lost_end_of_every_file_of_a_completed_attempt_is_found(files: Files) -> None:
    files.forget("report", "result", "exit", "ended")
    assert len(lost_tails(files.world)) == 2


def test_a_file_of_which_the_store_has_nothing_is_found(files: Files) -> None:
    files.forget("resumed", "report", "result")
    assert lost_tails(files.world) == ["events of (3, 7, 'h0', 'rank0.events'): the store ends with 0, the file with 3"]


def test_a_failed_attempt_whose_host_reported_its_end_must_be_whole(files: Files) -> None:
    files.end("failed")
    assert lost_tails(files.world) == []
    files.forget("result")
    assert len(lost_tails(files.world)) == 1


def test_a_host_that_was_given_up_may_have_more_than_the_store(files: Files) -> None:
    files.end("lost")
    files.forget("result", "exit", "ended")
    assert lost_tails(files.world) == []


def test_an_unfinished_last_line_is_no_event(files: Files) -> None:
    with (files.folder / "rank0" / "events").open("ab") as file:
        file.write(encode_event({"seq": 4, "kind": "report"})[:-5])
    assert lost_tails(files.world) == []


def test_a_host_whose_files_are_not_where_they_are_looked_for_is_found(files: Files) -> None:
    files.folder.rename(files.folder.with_name("elsewhere"))
    assert lost_tails(files.world) == ["no host has a file of events: nothing was compared"]


def test_a_checker_that_cannot_look_is_a_violation_and_goes_on() -> None:
    class Broken:
        asked = 0

        def __iter__(self) -> Iterator[Any]:
            self.asked += 1
            raise ValueError("no hosts")

    hosts: Any = Broken()
    checker = Checker(hosts)
    try:
        while hosts.asked < 2:
            checker._thread.join(0.05)
            assert checker._thread.is_alive()
    finally:
        checker.close()
    assert "no hosts" in checker.violations[0]
    with pytest.raises(AssertionError, match="never completed a scan"):
        checker.check()


#: A host's init and a supervisor: each adopts the orphans below it.
FIRST = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if len(sys.argv) > 3:
    subprocess.Popen([sys.executable, sys.argv[1], "follow", sys.argv[2]])
else:
    env = {"DTRAIN_RUN": "t1.1.7", "DTRAIN_SLOT": "1"}
    subprocess.Popen([sys.executable, sys.argv[2]], env=env, start_new_session=True)
while True:
    os.wait()
"""
#: A rank that leaves a detached process.
RANK = """
import os, subprocess, sys, time
leak = "import os, time\\nif os.fork(): os._exit(0)\\nprint(os.getpid(), flush=True)\\ntime.sleep(600)"
subprocess.Popen([sys.executable, "-c", leak], start_new_session=True, env={}).wait()
print(os.getpid(), os.getppid(), flush=True)
time.sleep(600)
"""


def test_a_process_without_environment_is_known_by_the_run_that_it_descends_from(tmp_path: Path) -> None:
    role, rank_file = tmp_path / "supervisor" / ("0" * 64), tmp_path / "rank.py"
    role.parent.mkdir()
    role.write_text(FIRST)
    rank_file.write_text(RANK)
    command = [sys.executable, "-c", FIRST, str(role), str(rank_file), "first"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert first.stdout
    (leaked,), (rank, supervisor) = sorted(
        ([int(pid) for pid in first.stdout.readline().split()] for _ in "ab"), key=len
    )
    mine = {leaked, rank, supervisor}
    try:
        host: Any = SimpleNamespace(name="h0", init_pid=first.pid, pid_namespace=os.readlink("/proc/self/ns/pid"))
        census = Census([host])
        found = {one.pid: (one.place, one.run, one.is_rank) for one in census.look() if one.pid in mine}
        assert found == {rank: (("h0", "1"), "t1.1.7", True), leaked: (("h0", "1"), "t1.1.7", False)}
        os.kill(supervisor, signal.SIGKILL)
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: not {rank, supervisor} & {one.pid for one in census.look()}, timeout_s=20, what="the end")
        assert {one.run for one in census.look() if one.pid in mine} == {"t1.1.7"}
        assert [one.run for one in Census([host]).look() if one.pid in mine] == [UNKNOWN], "a late scan sees it"
    finally:
        for pid in (leaked, rank, supervisor, first.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first.wait()


def test_a_follower_that_used_too_much_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = peak_mib(os.getpid())
    assert peak > 10
    monkeypatch.setattr(memory, "MOST_MIB", 2 * peak)
    assert grown([os.getpid()]) == []
    monkeypatch.setattr(memory, "MOST_MIB", peak / 2)
    assert len(grown([os.getpid(), 2**22 + 1])) == 1
