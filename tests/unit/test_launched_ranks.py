"""Ranks that a launcher has started: their place and their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.files.layout import Layout, process_records
from airflow_provider_dtrain.supervisor.machine.processes import all_procs, descendants, find_inner, pids_of
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError


def variables(folder: Path, **changes: Any) -> dict[str, str]:
    values = {
        "DTRAIN_RUN": "t1.1.7", "DTRAIN_RUN_DIR": str(folder), "DTRAIN_EVENTS": str(folder / "rank4/events"),
        "DTRAIN_LAUNCH": "per_host", "DTRAIN_WORLD_SIZE": "8", "TORCHELASTIC_ERROR_FILE": "/of/the/launcher",
        "RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", **changes,
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def test_files_of_a_rank_are_in_its_own_folder_and_not_in_that_of_its_launcher(tmp_path: Path) -> None:
    env = RankEnvironment.read(variables(tmp_path))
    assert (env.rank, env.local_rank, env.world_size) == (6, 2, 8)
    assert (env.events_path, env.error_path) == (tmp_path / "rank6/events", tmp_path / "rank6/error.json")
    assert env.launcher_log == tmp_path / "rank4/log"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RANK": None}, "RANK and WORLD_SIZE are not set"),
        ({"WORLD_SIZE": None, "RANK": "0"}, "RANK and WORLD_SIZE are not set"),
        ({"WORLD_SIZE": "16"}, "WORLD_SIZE must be 8"),
        ({"DTRAIN_LAUNCH": None}, "RANK must be 4, as the trial has started this rank, got 6.* launch: per_host"),
    ],
)
def test_a_process_that_is_no_rank_of_the_trial_is_refused_with_the_fix(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SetupError, match=words):
        RankEnvironment.read(variables(tmp_path, **changes))


BEGIN = """
import os, sys
from airflow_provider_dtrain.supervisor.machine.processes import all_procs, descendants, find_inner, pids_of
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.process import worker
print("before")
env = RankEnvironment.read()
worker.begin(env.events_path.parent, env.launcher_log)
print("after", os.getpid(), flush=True)
os.write(2, b"error")
"""


def test_output_goes_to_the_log_of_the_rank_unless_the_launcher_has_sent_it_elsewhere(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path), str(tmp_path))
    folder = layout.run("t1.1.7")
    own = Path(folder.file("rank6"))
    Path(folder.file("rank4")).mkdir(parents=True)
    env = {**os.environ, **variables(Path(folder.path))}
    with open(folder.file("rank4", "log"), "a") as log, open(tmp_path / "elsewhere", "w") as elsewhere:
        subprocess.run([sys.executable, "-c", BEGIN], env=env, stdout=log, stderr=elsewhere, check=True)
    assert Path(folder.file("rank4", "log")).read_text() == "before\n"
    pid = int((own / "log").read_text().removeprefix("after "))
    assert (tmp_path / "elsewhere").read_text() == "error"
    for name, document in {
        "plan.json": {"per_host": True},
        "state.json": {"ranks": [{"rank": 4, "pid": 1, "start_time": 2}, {"rank": 6, "pid": 0, "start_time": 0}]},
    }.items():
        Path(folder.file(name)).write_text(json.dumps(document))
    launcher, worker = process_records(folder)
    assert (launcher["pid"], worker["pid"]) == (1, pid)
    assert worker["start_time"] > 0


@pytest.mark.netns
def test_a_process_of_a_container_is_found_by_the_pid_that_it_has_there() -> None:
    # The first process waits for a child, which writes the pid that it has in the namespace.
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; print(os.getpid()); input()'])"
    argv = ["unshare", "--pid", "--fork", sys.executable, "-uc", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        inside = int(process.stdout.readline())
        below = descendants([process.pid], all_procs())
        first, child = (next(one for one in below if pids_of(one.pid)[1:] == [pid]) for pid in (1, inside))
        assert inside != child.pid
        root = (first.pid, first.start_time)
        assert find_inner(*root, inside, child.start_time) == child.pid
        # Other processes that have or had these pids.
        assert find_inner(*root, inside, child.start_time + 1) == 0
        assert find_inner(*root, inside + 1, child.start_time) == 0
        assert find_inner(first.pid, first.start_time + 1, inside, child.start_time) == 0
        process.communicate("\n")
