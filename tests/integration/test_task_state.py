"""Name, links and last log line of a task instance, under Airflow's own task supervisor."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.end_summary import shown_of
from airflow_provider_dtrain.notifications.log import LogNotifier
from airflow_provider_dtrain.notifications.serialization import pack
from airflow_provider_dtrain.store.records.trials import HandOver, TrialKey, TrialSubmission
from testbed.log_scene import LogScene
from testbed.worker import DAG_FILE, MAX_TRIES, Workers

pytestmark = [pytest.mark.slow, pytest.mark.airflow]

CODE = Path(__file__).parents[1] / "jobs" / "code"
DAG = """
from airflow.sdk import DAG

from airflow_provider_dtrain.notifications.log import LogNotifier
from airflow_provider_dtrain.operators.trial import TrialOperator

NOTIFY = {{event: LogNotifier(event + ": {{{{ dtrain.title }}}}") for event in ("finished", "failed")}}
CONFIG = {config!r}
WAYS = ("completes", "raise")
TRIALS = [
    {{"number": number, "name": f"{{number}} | way={{way}}", "hparams": {{"way": way}}}}
    for number, way in enumerate(WAYS)
]

with DAG("numbers", schedule=None):
    TrialOperator.partial(task_id="train", config=CONFIG, deferrable=False, retries=4, notify=NOTIFY).expand(
        trial=TRIALS
    )
"""
CONFIG = {
    "name": "f", "entrypoint": "python by_hparam.py", "model_dir": "code",
    "resources": {"slots_per_trial": 1, "pool": "local"}, "max_restarts": 0,
    "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
    "hyperparameters": {"way": "raise"},
}  # fmt: skip


class Scene:
    """Tasks of one mapped operator, each in a worker of its own."""

    def __init__(self, folder: Path) -> None:
        self.scene = LogScene(folder)
        self.workers = Workers(folder, self.scene.environment, CONFIG, CODE, dag=DAG)

    def run(self, name: str, map_index: int, resumes: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Run a task instance to its end and return the records of its log."""
        process = self.workers.start(name, 1, map_index=map_index, resumes=resumes)
        self.scene.until(lambda: not Path(f"/proc/{process.pid}").exists(), f"the end of {name}")
        text = (self.scene.folder / "logs" / f"{name}.attempt=1.log").read_text()
        return [json.loads(line) for line in text.splitlines()]

    @contextlib.contextmanager
    def deferrable(self) -> Iterator[None]:
        """Let tasks that start meanwhile defer."""
        file = self.workers.folder / "dags" / DAG_FILE
        text = file.read_text()
        file.write_text(text.replace("deferrable=False", "deferrable=True"))
        try:
            yield
        finally:
            file.write_text(text)

    def sent(self, name: str, what: str) -> list[Any]:
        """Return the bodies of requests to the API server whose path ends in ``what``."""
        return [body for path, body in self.workers.requests(name) if path.endswith(what)]

    def close(self) -> None:
        self.workers.close()
        self.scene.close()


def notifications(records: list[dict[str, Any]]) -> list[str]:
    return [record["event"] for record in records if record["event"].startswith("Notification: ")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("scene")
        patch.setenv("HOME", str(folder))
        scene = Scene(folder)
        yield scene
        scene.close()


def test_the_name_follows_the_trial_and_ends_with_its_result(scene: Scene) -> None:
    records = scene.run("good", 0)
    names = scene.sent("good", "/rendered-map-index")
    assert names[0] == "0 | way=completes"
    assert "0 | way=completes -> waits for slots" in names
    assert "0 | way=completes -> trains" in names
    assert names[-1] == "0 | way=completes -> accuracy 0.5"
    links = {path.rpartition("/")[2]: body for path, body in scene.workers.requests("good") if "_link_" in path}
    [trial] = scene.scene.hook.store.trials.list(run_id="good")
    assert notifications(records) == [f"Notification: finished: Trial {trial.trial_id} of f finished: accuracy 0.5"]
    assert links == {
        "_link_TrialLink": f"plugin/dtrain/trials/{trial.trial_id}",
        "_link_ExperimentLink": f"plugin/dtrain/experiments/{trial.experiment_id}",
    }


def test_the_log_of_a_failed_task_ends_with_the_cause_in_one_line(scene: Scene) -> None:
    records = scene.run("bad", 1)
    assert scene.sent("bad", "/state")[-1]["rendered_map_index"].startswith(
        "1 | way=raise -> failed: ValueError: cannot go on"
    )
    [trial] = scene.scene.hook.store.trials.list(run_id="bad")
    words = r"ValueError: cannot go on, at .* \(rank 0 on host 'local' failed first \(exit code 1 at [\d:]+ UTC\)\)"
    [notification] = notifications(records)
    assert re.fullmatch(rf"Notification: failed: Trial {trial.trial_id} of f failed: {words}", notification)
    while records[-1]["event"].startswith("::"):
        # Airflow folds its own steps after the task into groups.
        records.pop()
    last = records[-1]
    assert last["level"] == "error"
    [detail] = last["error_detail"]
    assert re.fullmatch(words, detail["exc_value"])
    assert any("Traceback" in record["event"] for record in records[-3:-1]), "the rank's traceback comes before it"


def test_a_mapped_task_that_defers_sends_its_name_and_each_link_once(scene: Scene) -> None:
    store = scene.scene.hook.store
    # The worker keeps the trial that is submitted first.
    store.trials.submit(
        TrialSubmission(
            key=TrialKey(dag_id="numbers", run_id="waits", task_id="train", map_index=0, max_tries=MAX_TRIES),
            experiment_name="f",
            config_id=store.configs.put(CONFIG, origins={}).config_id,
            pool="local",
            slots=1,
            hand_over=HandOver.YES,
        )
    )
    with scene.deferrable():
        scene.run("waits", 1)
    sent = Counter(path.rpartition("/")[2] for path, _ in scene.workers.requests("waits"))
    assert scene.sent("waits", "/state")[-1]["state"] == "deferred"
    assert {name: sent[name] for name in ("rendered-map-index", "_link_TrialLink", "_link_ExperimentLink")} == {
        "rendered-map-index": 1,
        "_link_TrialLink": 1,
        "_link_ExperimentLink": 1,
    }
    [trial] = [one for one in store.trials.list(run_id="waits") if one.key.map_index == 1]
    assert scene.sent("waits", "/_link_TrialLink") == [f"plugin/dtrain/trials/{trial.trial_id}"]


@pytest.mark.nightly
def test_a_task_that_was_deferred_resumes_with_the_name_from_the_event_and_keeps_its_links(scene: Scene) -> None:
    trial = next(iter(scene.scene.hook.store.trials.list(run_id="good")), None)
    if trial is None:
        scene.run("good", 0)
        [trial] = scene.scene.hook.store.trials.list(run_id="good")
    outcome = {"state": "completed", "result": {"trial_id": trial.trial_id}, "failure": None}
    end = {"outcome": outcome, "log_marks": [], **shown_of(scene.scene.hook.store, trial.trial_id)}
    event = {"trials": [end]}
    assert notifications(scene.run("resumed", 0, resumes=event)) == [], "the event was notified before"
    assert scene.sent("resumed", "/rendered-map-index")[-1] == "0 | way=completes -> accuracy 0.5"
    assert not [path for path, _ in scene.workers.requests("resumed") if "_link_" in path]


@pytest.mark.nightly
def test_a_deferred_trial_that_waits_too_long_is_notified_by_the_triggerer(scene: Scene) -> None:
    scene, store = scene.scene, scene.scene.hook.store
    store.hosts.set_state("local", "draining", "test")
    [waiting] = scene.submit(1)
    trigger = scene.triggers([waiting])[0]
    notifier = pack(LogNotifier("{{ dtrain.event }}: {{ dtrain.title }}"))
    trigger["kwargs"]["notifications"] = {"limit_s": 0.1, "waited": [notifier], "straggler": []}
    scene.jobs += 1
    process = scene.triggerers.start(scene.jobs, [trigger])

    def said() -> list[str]:
        return [text for text in scene.texts(waiting) if text.startswith("Notification: ")]

    try:
        scene.until(lambda: store.notifications.sent(waiting), "the notification")
    finally:
        process.signal(signal.SIGKILL)
        store.hosts.set_state("local", "ready")
    [line] = said()
    assert line.startswith(f"Notification: waited: Trial {waiting} of numbers has waited ")
    assert line.endswith("local.")
    assert store.notifications.sent(waiting) == {"waited": ""}
