"""Every route of the API as a request, for tests of rights on a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from fastapi.routing import APIRoute

from airflow_provider_dtrain.api.app import PREFIX, create_app
from airflow_provider_dtrain.api.security import READING, Rule
from airflow_provider_dtrain.cli.experiments_create import DAG_FILE
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ApiServer
from testbed.stores import host
from tests.support.search_world import Search

SECRET = "hidden-7f3a"  # noqa: S105 - a value that must never be shown
#: Configuration of the experiment in the store of :func:`fill`.
SEARCH = {
    "name": "e",
    "entrypoint": "python train.py",
    "checkpoint_storage": {"type": "s3", "bucket": "runs", "access_key": "AKIDEXAMPLE", "secret_key": SECRET},
    "resources": {"pool": "gpus", "slots_per_trial": 1},
    "hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 0.3, "count": 3}},
    "searcher": {"name": "grid", "metric": "loss"},
}
QUERIES = {
    "/lookup": "dag_id=d&run_id=r", "/curves": "metric=loss&trial=1", "/compare": "trial=1&trial=2",
    "/trials/{trial_id}/outputs/download": "path=x", "/runs/groups": "by=params.lr",
    "/trials/{trial_id}/media/image": "path=x", "/trials/{trial_id}/media/content": "path=x",
    "/trials/{trial_id}/code/text": "file=x", "/differences/code": "trial=1&trial=2",
    "/trials/{trial_id}/flames": "file=x",
}  # fmt: skip
CONFIG = {"config": "name: x\nentrypoint: python t.py\n"}
BODIES = {
    "/configs/validate": CONFIG,
    "/configs/explain": CONFIG,
    "/templates/validate": {"text": "max_restarts: 1"},
    "/templates/{name}": {"text": "max_restarts: 1"},
    "/experiments": CONFIG,
    "/experiments/actions": {"action": "tag", "experiment_ids": [1], "tags": ["a"]},
    "/code": {},
    "/runs/views": {"name": "v"},
    "/runs/views/{view_id}": {"name": "v"},
    "/experiments/{experiment_id}/comments": {"text": "a"},
    "/trials/{trial_id}/comments": {"text": "a"},
    **{f"/operations/{kind}": {"trial_id": 1} for kind in ("log", "stacks", "profile", "outputs")},
    "/operations/check": {"hosts": ["a"]},
    "/operations/checkpoint": {"trial_id": 1, "checkpoint_id": 1},
    "/operations/exec": {"trial_id": 1, "argv": ["true"]},
}
#: Commands of Airflow in one process, then DAGs without files.
PREPARE = """
import json, sys
from airflow.__main__ import main
commands, dags = json.loads(sys.argv[1])
for command in commands:
    sys.argv = ["airflow", *command]
    main()
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
with create_session() as session:
    for dag_id in dags:
        session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder", fileloc=f"/{dag_id}.py", is_stale=False))
"""


def prepare(server: ApiServer, *commands: list[str], dags: tuple[str, ...] = ("d",)) -> None:
    """Migrate the metadata database, and let Airflow know the DAG of ``airflow dtrain init`` and further DAGs."""
    (server.home / "dags" / "dtrain_experiment.py").write_text(DAG_FILE)
    for script in ("t.py", "train.py"):
        (server.home / "dags" / script).touch()
    every = [["db", "migrate"], *commands, ["dags", "reserialize"]]
    run = [sys.executable, "-c", PREPARE, json.dumps([every, dags])]
    done = subprocess.run(run, env=server.environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def fill(url: str) -> None:
    """Write an experiment with two trials and a held gang of DAG d."""
    store = Store.open(url)
    store.hosts.add(host("a", slots=8))
    search = Search(store)
    search.config = store.configs.put(SEARCH, origins={}).config_id
    search.plan(max_trials=4)
    search.submit(0, slots=1)
    search.submit(1, slots=1)
    store.gangs.submit(GangSubmission(key=TrialKey(dag_id="d", run_id="r", task_id="sensor"), pool="gpus", slots=1))
    store.queue.schedule("gpus")
    store.close()


def matrix() -> list[tuple[str, str, Rule]]:
    """Return method, path and rule of every route."""
    return [
        (method, route.path, Rule(route.openapi_extra["x-dtrain-rule"]))
        for route in create_app().routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods - {"HEAD"})
    ]


def concrete(path: str, **ids: object) -> str:
    """Return the path of a route with ids that exist in the store of :func:`fill`.

    :param ids: other ids
    """
    known = {
        "experiment_id": 1,
        "trial_id": 1,
        "checkpoint_id": 1,
        "name": "a",
        "index": 0,
        "allocation_id": 3,
        "digest": "0" * 64,
        "operation_id": 1,
        "view_id": 1,
        "comment_id": 1,
    }
    query = QUERIES.get(path.removeprefix("/api/v1"))
    for name, value in {**known, **ids}.items():
        path = path.replace(f"{{{name}}}", str(value))
    return f"{PREFIX}{path}" + (f"?{query}" if query else "")


def body(method: str, path: str) -> object:
    """Return a body that a route accepts."""
    if method in READING:
        return None
    return BODIES.get(path.removeprefix("/api/v1"), {})


def refused(server: ApiServer, token: str, allowed: Mapping[Rule, bool]) -> dict[tuple[str, str], object]:
    """Return the routes whose answer to a user differs from what the user may do, or that fail.

    :param allowed: rule -> whether the user has its right
    """
    wrong = {}
    for method, path, rule in matrix():
        status, answer = server.request(method, concrete(path), body(method, path), token=token)
        if (status not in {401, 403}) != allowed[rule] or status >= 500:
            wrong[method, path] = status, answer
    return wrong
