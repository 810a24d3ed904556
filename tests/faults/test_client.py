"""``dtrain`` and the Python client against a complete Airflow on PostgreSQL, with users of three roles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.cli.experiments_create import DAG_FILE, OPERATIONS_DAG_FILE
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.errors import DtrainError
from testbed.netns import missing
from testbed.roles import role_options
from testbed.standalone import wait_until
from testbed.stores import Server, server_programs
from tests.faults.stage import Stage, staged

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
    pytest.mark.skipif(server_programs() is None, reason="PostgreSQL's programs are not installed"),
]

#: A plain program: numbered lines, a metric, and a file. Arguments: number of lines, seconds between them.
PROGRAM = """
import json, os, sys, time
count, pause_s = int(sys.argv[1]), float(sys.argv[2])
with open(os.environ["DTRAIN_METRICS"], "a") as metrics:
    for number in range(count):
        print(f"LINE {number}", flush=True)
        if number % 20 == 0:
            metrics.write(json.dumps({"step": number, "metrics": {"loss": 1 / (number + 1)}}) + chr(10))
            metrics.flush()
        time.sleep(pause_s)
    metrics.write(json.dumps({"step": count, "validation": {"accuracy": 0.5}}) + chr(10))
with open("result.txt", "w") as file:
    file.write("done")
"""
CONFIG = """
name: {name}
entrypoint: python program.py {count} {pause_s}
model_dir: code
max_restarts: 0
resources: {{slots_per_trial: 2, pool: gpus}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: {count}}}}}
"""
DTRAIN = [sys.executable, "-c", "from airflow_provider_dtrain.client.main import script; script()"]


class Laptop:
    """Another machine of a user: a folder for files, a token, and no variable of Airflow."""

    def __init__(self, stage: Stage, user: str, folder: Path) -> None:
        self.folder = folder / user
        (self.folder / "code").mkdir(parents=True)
        (self.folder / "code" / "program.py").write_text(PROGRAM)
        token = stage.airflow.token(user)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DTRAIN"))}
        variables = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder), "DTRAIN_TOKEN": token}
        self.environment = {**kept, **variables, "DTRAIN_SERVER": stage.airflow.base, "PYTHONUNBUFFERED": "1"}
        self.client = Client(stage.airflow.base, token, notify=lambda words: None)

    def config(self, name: str, count: int, pause_s: float) -> str:
        """Write a configuration and return its path."""
        path = self.folder / f"{name}.yaml"
        path.write_text(CONFIG.format(name=name, count=count, pause_s=pause_s))
        return str(path)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends."""
        return subprocess.run(
            [*DTRAIN, *words], env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=300
        )

    def start(self, *words: str) -> Follower:
        """Start a command that follows."""
        return Follower([*DTRAIN, *words], self)


class Follower:
    """A command that runs, with its output in files."""

    def __init__(self, command: list[str], laptop: Laptop) -> None:
        stem = laptop.folder / "-".join(command[3:6]).replace("/", "_")
        self.out, self.err = Path(f"{stem}.out"), Path(f"{stem}.err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self._process = subprocess.Popen(
                command, env=laptop.environment, cwd=laptop.folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL
            )

    def lines(self) -> list[str]:
        """Return the lines that were printed so far."""
        return self.out.read_text().splitlines()

    def ends(self, timeout_s: float = 300) -> int:
        """Return the exit code once the command has ended."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Airflow with three hosts of two slots. Its database and the store are on PostgreSQL."""
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    (dags / "dtrain_experiment.py").write_text(DAG_FILE)
    (dags / "dtrain_operations.py").write_text(OPERATIONS_DAG_FILE)
    programs = server_programs()
    assert programs is not None
    server = Server(programs)
    server.start()
    try:
        url = server.add_database("airflow")
        with server.new_store() as store:
            options = {
                **role_options(home),
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": url,
                "AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN": store,
                # A triggerer that was killed is given up after this time.
                "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
            }
            with staged(Stage, home, dags, **options) as found:
                yield found
    finally:
        server.stop()


@pytest.fixture(scope="module")
def laptops(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Laptop]:
    """Return a function that returns the laptop of a user."""
    folder, made = tmp_path_factory.mktemp("laptops"), dict[str, Laptop]()

    def laptop(user: str) -> Laptop:
        if user not in made:
            made[user] = Laptop(stage, user, folder)
        return made[user]

    return laptop


def test_the_airflow_of_these_tests_is_on_postgresql(stage: Stage) -> None:
    assert stage.store.db.engine.dialect.name == "postgresql"
    assert not list(stage.airflow.home.rglob("*.db"))


def test_an_experiment_is_created_followed_read_and_downloaded_by_its_user(
    stage: Stage, laptops: Callable[[str], Laptop]
) -> None:
    user, viewer = laptops("user"), laptops("viewer")
    done = user.run("experiments", "create", user.config("small", 60, 0.02), "--follow")
    assert done.returncode == 0, done.stderr
    row = json.loads(viewer.run("experiments", "list", "-o", "json").stdout)[0]
    assert (row["name"], row["state"], row["best"]) == ("small", "completed", 0.5)
    trial = str(row["best_trial"])
    for laptop in (user, viewer):
        printed = laptop.run("trials", "logs", trial)
        assert printed.stdout.splitlines() == [f"LINE {number}" for number in range(60)], printed.stderr
        steps = json.loads(laptop.run("trials", "metrics", trial, "-o", "json").stdout)
        assert {one["group"] for one in steps} == {"training", "validation"}
        (path,) = [one["path"] for one in json.loads(laptop.run("trials", "outputs", trial, "-o", "json").stdout)]
        fetched = laptop.run("trials", "download", trial, path, "--to", "files")
        assert fetched.returncode == 0, fetched.stderr
        (file,) = (laptop.folder / "files").rglob("result.txt")
        assert file.read_text() == "done"
    experiment = viewer.client.experiments.get(row["experiment_id"])
    assert experiment.wait(60).best.log().splitlines()[-1] == b"LINE 59"
    assert list(experiment.trials.frame()["best_metric"]) == [0.5]


def test_an_experiment_is_forked_and_stopped_from_a_notebook(stage: Stage, laptops: Callable[[str], Laptop]) -> None:
    user = laptops("user")
    first = user.client.experiments.create(user.config("long", 6000, 0.1), user.folder / "code")
    ids = [_planned(first)]
    stage.until(first.trials.list, "the trial that stores the code")
    ids.append(_planned(user.client.experiments.fork(first.id)))
    for number, experiment_id in enumerate(ids):
        trials = user.client.experiments.get(experiment_id).trials
        (trial,) = stage.until(trials.list, f"the trial of experiment {experiment_id}")
        stage.until(lambda one=trial.trial_id: stage.trial(one).state == "running", f"ranks of trial {trial.trial_id}")
        if number == 0:
            user.client.experiments.get(experiment_id).stop()
        else:
            stopped = user.run("experiments", "stop", str(experiment_id), "-y")
            assert stopped.returncode == 0, stopped.stderr
    for experiment_id in ids:
        assert user.client.experiments.get(experiment_id).wait(300).state in {"stopped", "completed"}


def _planned(experiment: object) -> int:
    """Return the id of an experiment once it is planned."""

    def found() -> int | None:
        try:
            return int(experiment.id)  # type: ignore[attr-defined]
        except DtrainError:
            return None

    return int(wait_until(found, timeout_s=120, what="the plan"))


def test_commands_and_methods_have_the_rights_of_their_user(stage: Stage, laptops: Callable[[str], Laptop]) -> None:
    user, viewer, op = laptops("user"), laptops("viewer"), laptops("op")
    runs = stage.airflow.api("GET", "/dags/dtrain_experiment/dagRuns")["total_entries"]
    config = viewer.config("refused", 1, 0)
    for words in (
        ("experiments", "create", config),
        ("experiments", "fork", "1"),
        ("experiments", "set", "1", "--tag", "seen"),
        ("trials", "set", "1", "--tag", "seen"),
        ("trials", "exec", "1", "--", "id"),
    ):
        refused = viewer.run(*words)
        assert (refused.returncode, "You may not" in refused.stderr) == (1, True), (words, refused.stderr)
    with pytest.raises(DtrainError, match="You may not"):
        viewer.client.experiments.create(config, viewer.folder / "code")
    assert stage.airflow.api("GET", "/dags/dtrain_experiment/dagRuns")["total_entries"] == runs
    off = [laptop.run("trials", "exec", "1", "--", "id") for laptop in (user, op)]
    assert ["You may not" in one.stderr for one in off] == [True, False]
    assert "allow_exec" in off[1].stderr
    assert [one.name for one in op.client.cluster().hosts] == [one.name for one in viewer.client.cluster().hosts]
    assert user.run("trials", "set", "1", "--tag", "seen").returncode == 0
    assert stage.store.labels.get("trial", 1).tags == ("seen",)


def test_followers_survive_a_killed_triggerer_and_print_each_line_once(
    stage: Stage, laptops: Callable[[str], Laptop]
) -> None:
    user, count = laptops("user"), 1200
    followers = [user.start("experiments", "create", user.config("followed", count, 0.1), "--follow")]
    try:
        trial = stage.until(lambda: _trial_of(stage, "followed"), "the trial")
        followers += [user.start("trials", "logs", trial, "-f"), user.start("trials", "watch", trial)]
        ended: list[str] = []
        waiting = threading.Thread(target=lambda: ended.append(_wait(user.client, "followed")))
        waiting.start()
        stage.until(lambda: len(followers[1].lines()) > 50, "50 lines of the log")
        watch = stage.followed(int(trial), "triggerer").watch
        stage.kill_part("triggerer")
        killed_at, seen = time.monotonic(), len(followers[1].lines())
        stage.until(lambda: time.monotonic() > killed_at + 12, "output that no follower fetches")
        unseen = len(followers[1].lines()) - seen
        stage.start_part("triggerer")
        stage.followed(int(trial), "triggerer", after=watch)
        print(f"followed again {time.monotonic() - killed_at:.0f} s after the kill")
        assert unseen < 60, "the log stood still without a follower"
        assert [follower.ends() for follower in followers] == [0, 0, 0], [one.err.read_text() for one in followers]
        waiting.join(60)
    finally:
        for follower in followers:
            follower.close()
    assert followers[1].lines() == [f"LINE {number}" for number in range(count)]
    assert ended == ["completed"]
    assert stage.trial(int(trial)).attempts == 1


def _trial_of(stage: Stage, name: str) -> str | None:
    """Return the trial of an experiment whose ranks run."""
    found = [one for one in stage.store.trials.list() if one.experiment == name and one.state == "running"]
    return str(found[0].trial_id) if found else None


def _wait(client: Client, name: str) -> str:
    """Wait for an experiment as a notebook does, and return its state."""
    (found,) = [one for one in client.experiments.list() if one.name == name]
    return client.experiments.get(found.experiment_id).wait(600).state
