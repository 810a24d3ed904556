"""An upgrade of the provider while trials run: nothing is lost, and there is no way back with the same store."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.standalone import Standalone, wait_until
from tests.support.lock_dirs import new_lock_dir
from tests.support.next_schema import NEXT_HEAD, add_migration

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_dtrain"
#: Tag of the version from which on versions are compatible.
FIRST = "v0.1.0rc1"
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]

PROGRAM = '''
"""Counts until a file exists, and some steps more. It saves one checkpoint, early.

Arguments: the file; a file for its last step; ``fails`` to fail once the file exists, in the first attempt.
"""

import os
import sys
import time
from pathlib import Path

import airflow_provider_dtrain.train as dtrain

finish, progress, way = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Count:
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


with dtrain.init() as ctx:
    count = Count()
    ctx.register(count=count)
    step = ctx.restore_checkpoint()
    print(f"attempt {attempt} begins at {step} with {count.value}", flush=True)
    left = 5
    while left:
        time.sleep(0.2)
        step += 1
        count.value = step * 10
        ctx.report(step, {"loss": 1.0 / step})
        ctx.sync(step)
        print(f"line {attempt} {step}.", flush=True)
        progress.write_text(str(step))
        if step == 3:
            ctx.save_checkpoint(step)
        if finish.exists():
            if way == "fails" and attempt == 0:
                raise ValueError("the first attempt fails after the upgrade")
            left -= 1
'''
DAG = """
from airflow.sdk import DAG, Param
from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG("upgraded", schedule=None, params={"config": Param("", type="string")}):
    TrialOperator(task_id="train", config="{{ params.config }}", deferrable=True)
"""
CONFIG = """
name: upgraded
entrypoint: python upgraded.py {folder}/finish {folder}/{name} {name}
model_dir: code
max_restarts: 1
checkpoint_policy: all
resources: {{slots_per_trial: 1, pool: local}}
checkpoint_storage: {{type: shared_fs, host_path: {folder}/shared}}
"""
#: A start of Airflow on a busy machine.
START_S = 1200.0
RUN_S = 600.0


@dataclass
class Versions:
    """Folders with the package of the former and of the new version."""

    former: Path
    new: Path

    def head(self, folder: Path) -> str:
        """Return the schema of a version."""
        text = (folder / PACKAGE / "store" / "database" / "schema.py").read_text()
        return re.findall(r'^HEAD = "(.*)"$', text, re.MULTILINE)[0]


def copied(folder: Path, version: str) -> Path:
    """Return a folder with the package as it is here, under another version."""
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    replace(folder / PACKAGE / "__init__.py", r'__version__ = ".*"', f'__version__ = "{version}"')
    return folder


def replace(path: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, path.read_text())
    assert count
    path.write_text(text)


def next_version(folder: Path) -> Path:
    """Return a folder with a version to come: a migration, and another supervisor."""
    copied(folder, "9.9.9")
    database = folder / PACKAGE / "store" / "database"
    head = Versions(folder, folder).head(folder)
    add_migration(database / "migrations")
    replace(database / "schema.py", rf'HEAD = "{head}"', f'HEAD = "{NEXT_HEAD}"')
    with (folder / PACKAGE / "supervisor" / "limits.py").open("a") as file:
        file.write("#: Of the version to come.\nOF_THE_NEXT = True\n")
    return folder


@pytest.fixture(params=["from the first compatible version", "to a version to come"])
def versions(request: pytest.FixtureRequest, tmp_path: Path) -> Versions:
    former, new = tmp_path / "former", tmp_path / "new"
    if request.param == "to a version to come":
        return Versions(copied(former, "0.1.0rc1"), next_version(new))
    archive = tmp_path / "former.tar"
    done = subprocess.run(
        ["git", "archive", "-o", str(archive), FIRST, PACKAGE], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the tag {FIRST}")
    with tarfile.open(archive) as opened:
        opened.extractall(former, filter="data")
    return Versions(former, copied(new, "9.9.9"))


class Site:
    """An Airflow whose provider is replaced, and its trials."""

    def __init__(self, folder: Path, versions: Versions) -> None:
        self.folder, self.versions = folder, versions
        dags = folder / "dags"
        (dags / "code").mkdir(parents=True)
        (dags / "upgraded.py").write_text(DAG)
        (dags / "code" / "upgraded.py").write_text(PROGRAM)
        for name in ("home", "shared", "airflow"):
            (folder / name).mkdir()
        self.airflow = Standalone(folder / "airflow", dags, {"HOME": str(folder / "home")})
        self.use(versions.former)
        self.runs: dict[str, str] = {}

    def use(self, version: Path) -> None:
        self.airflow.environment["PYTHONPATH"] = str(version)

    def command(self, *arguments: str, version: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = self.airflow.environment | ({"PYTHONPATH": str(version)} if version else {})
        command = [sys.executable, "-m", "airflow", "dtrain", *arguments]
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=600
        )

    def rows(self, *arguments: str) -> Any:
        done = self.command(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, name: str) -> None:
        self.runs[name] = self.airflow.trigger("upgraded", {"config": CONFIG.format(folder=self.folder, name=name)})

    def progress(self, name: str) -> int:
        """Return the last step of a trial, 0 before the first one."""
        path = self.folder / name
        return int(path.read_text() or 0) if path.exists() else 0

    def advances(self, name: str) -> None:
        """Wait until a trial has taken two more steps."""
        last = self.progress(name)
        wait_until(lambda: self.progress(name) > last + 1, timeout_s=120, what=f"further steps of {name}", poll_s=0.1)

    def trial(self, name: str) -> dict[str, Any]:
        """Return the row of a trial."""
        with closing(sqlite3.connect(self.folder / "airflow" / "dtrain.db")) as database:
            database.row_factory = sqlite3.Row
            found = database.execute("SELECT * FROM trials WHERE run_id = ?", [self.runs[name]]).fetchall()
        return dict(found[0]) if found else {}

    def state(self, name: str) -> str | None:
        return self.trial(name).get("state")

    def lines(self, name: str) -> list[tuple[int, int]]:
        """Return attempt and step of each line of a trial's ranks in the task log."""
        log = self.airflow.log("upgraded", self.runs[name], "train")
        return [(int(attempt), int(step)) for attempt, step in re.findall(r"line (\d+) (\d+)\.", log)]


@pytest.fixture
def site(tmp_path: Path, versions: Versions) -> Iterator[Site]:
    site = Site(tmp_path / "site", versions)
    try:
        yield site
    finally:
        (site.folder / "finish").touch()
        site.airflow.stop()


def test_trials_go_through_an_upgrade_and_the_former_version_refuses_the_store(site: Site, versions: Versions) -> None:
    site.airflow.start(START_S)
    added = site.command(
        "hosts",
        "add",
        "local",
        "--slots",
        "cpu:2",
        "--state-dir",
        str(site.folder / "state"),
        "--remote-dir",
        str(site.folder / "remote"),
        "--lock-dir",
        new_lock_dir(site.folder),
    )
    assert added.returncode == 0, added.stderr
    for name in ("steady", "fails"):
        site.submit(name)
    for name in ("steady", "fails"):
        wait_until(lambda name=name: site.progress(name) > 5, timeout_s=RUN_S, what=f"steps of {name}")
        site.airflow.wait_task("upgraded", site.runs[name], "train", "deferred", timeout_s=RUN_S)
    site.submit("waits")
    wait_until(lambda: site.state("waits") == "queued", timeout_s=RUN_S, what="the trial that waits")
    site.airflow.wait_task("upgraded", site.runs["waits"], "train", "deferred", timeout_s=RUN_S)
    supervisors = set((site.folder / "remote" / "supervisor").iterdir())

    site.airflow.stop()
    site.advances("steady")
    site.use(versions.new)
    migrated = site.rows("db", "migrate")
    assert migrated["schema"] == versions.head(versions.new)
    site.advances("steady")
    if versions.head(versions.former) != versions.head(versions.new):
        for command in (("trials", "list"), ("db", "migrate")):
            refused = site.command(*command, version=versions.former)
            assert refused.returncode == 1
            assert f"The store has schema {versions.head(versions.new)}, but this version" in refused.stderr
            assert "upgrade the provider here" in refused.stderr
    assert [site.trial(name)["state"] for name in ("steady", "fails", "waits")] == ["running", "running", "queued"]

    site.airflow.start(START_S)
    site.advances("steady")
    before = site.progress("steady")
    (site.folder / "finish").touch()
    ends = [site.airflow.wait("upgraded", site.runs[name], timeout_s=RUN_S) for name in ("steady", "fails", "waits")]
    assert ends == ["success"] * 3
    assert before >= 5

    rows = {name: site.trial(name) for name in site.runs}
    assert {row["state"] for row in rows.values()} == {"completed"}
    last = site.progress("steady")
    points = site.rows("trials", "metrics", str(rows["steady"]["id"]))
    assert [row["step"] for row in points if "loss" in json.dumps(row)] == list(range(1, last + 1)), "one curve"
    # Airflow writes the last lines of a trigger some seconds after its end on a busy machine.
    wait_until(lambda: (0, last) in site.lines("steady"), timeout_s=RUN_S, what="the last line of the log")
    lines = [step for _, step in site.lines("steady")]
    assert sorted(set(lines)) == list(range(1, last + 1)), "one log"
    # Lines of which the new version cannot know that Airflow has stored them are logged again.
    repeated = sorted(step for step, count in Counter(lines).items() if count > 1)
    assert len(repeated) < 50
    assert not repeated or repeated == list(range(repeated[0], repeated[-1] + 1))
    assert "attempt 1 begins at 3 with 30" in site.airflow.log("upgraded", site.runs["fails"], "train"), (
        "the new version resumes from a checkpoint of the former one"
    )
    assert site.progress("waits") == 5
    if versions.head(versions.new) == NEXT_HEAD:
        assert len(set((site.folder / "remote" / "supervisor").iterdir()) - supervisors) == 1
    removed = site.rows("hosts", "remove", "local", "--purge", "-y")
    assert removed["removed"] == "local"
    assert not (site.folder / "remote").exists(), "supervisors of both versions are gone"
