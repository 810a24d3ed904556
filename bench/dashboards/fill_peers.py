"""Write the trials of the seeded site into MLflow and Optuna, and serve both.

``fill_peers.py TRIALS.json FOLDER PORT PORT`` runs in the environment of these programs, without this package. Each
program gets all that its own interface takes: hyperparameters, metrics by step, states, tags, the failure, the commit,
logs, packages, code, images, and the utilization of GPUs.
"""

from __future__ import annotations

import base64
import io
import json
import mimetypes
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import mlflow
import optuna
from mlflow.entities import Metric, Param, RunTag
from optuna.artifacts import ArtifactMeta, FileSystemArtifactStore
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

Trial = dict[str, Any]
#: State of a trial -> status of a run of MLflow.
STATUS = {"completed": "FINISHED", "stopped": "FINISHED", "errored": "FAILED", "killed": "KILLED"}
#: State of a trial -> that of Optuna's trial.
STATES = {
    "completed": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "errored": TrialState.FAIL,
    "killed": TrialState.FAIL,
    "running": TrialState.RUNNING,
}
#: Metrics of one request to MLflow.
BATCH = 1000
START_S = 120.0


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def unix_ms(text: str | None) -> int | None:
    at = moment(text)
    return None if at is None else int(at.timestamp() * 1000)


@contextmanager
def written(trial: Trial) -> Iterator[Path]:
    """Yield a folder with the files of a trial."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in trial["files"].items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))
        yield Path(folder)


# -- MLflow -----------------------------------------------------------------------------------------
def to_mlflow(trials: list[Trial], uri: str) -> None:
    """Write one experiment per experiment and one run per trial, as a training with MLflow would."""
    client = mlflow.MlflowClient(uri)
    ids: dict[str, str] = {}
    for trial in trials:
        name = trial["experiment"]
        if name not in ids:
            ids[name] = client.create_experiment(name, tags={"mlflow.experimentKind": "custom_model_development"})
        tags = {
            "mlflow.runName": f"trial-{trial['trial_id']}",
            "mlflow.user": trial["owner"],
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": "train.py",
            "mlflow.source.git.commit": trial["commit"],
            "state": trial["state"],
            **dict.fromkeys(trial["tags"], "true"),
            **({"mlflow.note.content": f"```\n{trial['error']}\n```"} if trial["error"] else {}),
        }
        run_id = client.create_run(ids[name], start_time=unix_ms(trial["created_at"]), tags=tags).info.run_id
        params = [Param(_name(key), str(value)) for key, value in trial["hparams"].items()]
        client.log_batch(run_id, params=params, tags=[RunTag("torch", trial["torch"])])
        rows = [
            Metric(_name(one["name"]), one["value"], unix_ms(one["at"]) or 0, one["step"]) for one in trial["metrics"]
        ]
        # The names that MLflow's own monitor of system metrics uses with several nodes.
        for number, gpu in enumerate(trial["gpus"]):
            name_of_gpu = f"system/{gpu['host']}/gpu_{number % 8}_utilization_percentage"
            rows += [Metric(name_of_gpu, value, at * 1000, step) for step, (at, value) in enumerate(gpu["points"])]
        for start in range(0, len(rows), BATCH):
            client.log_batch(run_id, metrics=rows[start : start + BATCH])
        with written(trial) as folder:
            client.log_artifacts(run_id, str(folder))
        if trial["state"] in STATUS:
            client.set_terminated(run_id, STATUS[trial["state"]], unix_ms(trial["ended_at"]))


def _name(text: str) -> str:
    """Return a name with the characters that MLflow permits."""
    return "".join(one if one.isalnum() or one in "_-. :/" else "_" for one in text)[:200]


# -- Optuna -----------------------------------------------------------------------------------------
def distribution(values: list[Any]) -> BaseDistribution:
    """Return a distribution that contains all values of a hyperparameter."""
    if all(isinstance(value, float) for value in values) and len(set(values)) > 3:
        return FloatDistribution(min(values), max(values), log=min(values) > 0 and max(values) > 100 * min(values))
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values) and len(set(values)) > 3:
        return IntDistribution(min(values), max(values))
    return CategoricalDistribution(sorted(set(values), key=str))


def to_optuna(trials: list[Trial], url: str, artifacts: Path) -> None:
    """Write one study per experiment: trials with values by step, states, the failure as an attribute, files."""
    artifacts.mkdir()
    store = FileSystemArtifactStore(str(artifacts))
    by_name: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_name[trial["experiment"]].append(trial)
    for name, rows in by_name.items():
        direction = "minimize" if rows[0]["is_minimized"] else "maximize"
        study = optuna.create_study(storage=url, study_name=name, direction=direction)
        plain = [{key: _plain(value) for key, value in one["hparams"].items()} for one in rows]
        spaces = {
            key: distribution([one[key] for one in plain if key in one])
            for key in sorted({k for one in plain for k in one})
        }
        study.add_trials([_frozen(trial, params, spaces, store) for trial, params in zip(rows, plain, strict=True)])


def _uploaded(trial: Trial, store: FileSystemArtifactStore) -> dict[str, str]:
    """Store the files of a trial, and return its attributes of them: an ended trial refuses ``upload_artifact``."""
    attributes = {}
    for name, content in trial["files"].items():
        artifact_id = str(uuid.uuid4())
        store.write(artifact_id, io.BytesIO(base64.b64decode(content)))
        file = name.replace("/", "-")
        kind = mimetypes.guess_type(file)[0] or "text/plain"
        meta = ArtifactMeta(artifact_id=artifact_id, filename=file, mimetype=kind, encoding=None)
        attributes[f"artifacts:{artifact_id}"] = json.dumps(asdict(meta))
    return attributes


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) or value is None else json.dumps(value)


def _frozen(
    trial: Trial, params: dict[str, Any], spaces: dict[str, BaseDistribution], store: FileSystemArtifactStore
) -> FrozenTrial:
    values = {one["step"]: one["value"] for one in trial["metrics"] if one["is_goal"]}
    state = STATES.get(trial["state"], TrialState.WAITING)
    if state == TrialState.COMPLETE and not values:
        state = TrialState.FAIL
    facts = {
        "trial": trial["trial_id"],
        "tags": ", ".join(trial["tags"]),
        "commit": trial["commit"],
        "torch": trial["torch"],
        "owner": trial["owner"],
        "error": trial["error"],
    }
    best = min if trial["is_minimized"] else max
    is_waiting = state == TrialState.WAITING
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=best(values.values()) if state == TrialState.COMPLETE else None,
        datetime_start=None if is_waiting else moment(trial["created_at"]),
        datetime_complete=moment(trial["ended_at"]) if state.is_finished() else None,
        params={} if is_waiting else params,
        distributions={} if is_waiting else {key: spaces[key] for key in params},
        user_attrs={key: value for key, value in facts.items() if value},
        system_attrs=_uploaded(trial, store),
        intermediate_values=values,
    )


# -- servers ----------------------------------------------------------------------------------------
def wait_for(port: int) -> None:
    """Wait until a server answers.

    :raises TimeoutError: it did not
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(f"No server answered at port {port} within {START_S:.0f} s.")


def main() -> None:
    trials = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    ports = [int(one) for one in sys.argv[3:]]
    programs = Path(sys.executable).parent
    database = f"sqlite:///{folder}/optuna.db"
    commands = [
        [
            "mlflow",
            "server",
            "--backend-store-uri",
            f"sqlite:///{folder}/mlflow.db",
            "--artifacts-destination",
            folder / "mlflow",
            "--workers",
            "1",
            "--port",
        ],
        ["optuna-dashboard", database, "--artifact-dir", folder / "optuna", "--port"],
    ]
    servers: list[subprocess.Popen[bytes]] = []

    def start(number: int) -> None:
        name, *options = commands[number]
        servers.append(subprocess.Popen([programs / name, *options, str(ports[number])]))
        wait_for(ports[number])

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        start(0)
        to_mlflow(trials, f"http://127.0.0.1:{ports[0]}")
        to_optuna(trials, database, folder / "optuna")
        start(1)
        (folder / "ready").touch()
        signal.pause()
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(timeout=30)


if __name__ == "__main__":
    main()
