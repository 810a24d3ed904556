"""Airflow's own task supervisor and task process, without a scheduler or an API server.

The supervisor, the task process and the log files are Airflow's. The API server is replaced at the HTTP transport.
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

from testbed.forking import Forker, Process, serve

MAX_TRIES = 5
#: Name of the file with the DAG, below the folder of the bundle.
DAG_FILE = "numbers_dag.py"
DAG = """
from airflow.sdk import DAG

from airflow_provider_dtrain.operators.trial import TrialOperator

CONFIG = {config!r}

with DAG("numbers", schedule=None):
    TrialOperator(task_id="train", config=CONFIG, deferrable=False, retries=4)
"""


class Workers:
    """Runs tries of the one task of a DAG.

    Each request of a task to the API server is a line of ``<run id>.requests``.

    :param folder: for logs, requests, and the DAG's own folder
    :param config: of the trial
    :param code: the ``model_dir`` of the configuration
    :param dag: text of the DAG file; ``{config!r}`` in it stands for the configuration
    """

    def __init__(
        self, folder: Path, environment: dict[str, str], config: dict[str, Any], code: Path, *, dag: str = DAG
    ) -> None:
        self.folder = folder
        dags = folder / "dags"
        dags.mkdir(exist_ok=True)
        (dags / DAG_FILE).write_text(dag.format(config=config))
        if not (dags / config["model_dir"]).exists():
            os.symlink(code, dags / config["model_dir"])
        bundle = '[{"name": "tests", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", '
        bundle += f'"kwargs": {{"path": "{dags}"}}}}]'
        variables = {**environment, "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": bundle}
        self._forker = Forker("testbed.worker", folder / "workers.out", variables)

    def start(self, run_id: str, number: int, *, map_index: int = -1, resumes: dict[str, Any] | None = None) -> Process:
        """Start a try of the task.

        :param run_id: of the DAG run; the log file is ``logs/<run id>.attempt=<number>.log``
        :param number: of the try, from 1
        :param resumes: event of the trigger with which a deferred task resumes
        """
        return Process(self._forker.fork(run_id, number, map_index, resumes, str(self.folder)))

    def requests(self, run_id: str) -> list[tuple[str, Any]]:
        """Return path and body of each request of a DAG run's task."""
        path = self.folder / f"{run_id}.requests"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        """End every process."""
        self._forker.close()


def main(run_id: str, number: int, map_index: int, resumes: dict[str, Any] | None, folder: str) -> None:
    """Be the supervisor of one try."""
    import httpx
    from airflow.executors.workloads.base import BundleInfo
    from airflow.sdk.api.client import Client
    from airflow.sdk.api.datamodels._generated import TaskInstance
    from airflow.sdk.execution_time.supervisor import supervise_task
    from airflow.sdk.serde import serialize

    def note(request: httpx.Request) -> None:
        with (Path(folder) / f"{run_id}.requests").open("a") as file:
            body = request.content.decode()
            file.write(json.dumps([request.url.path, json.loads(body) if body else None]) + "\n")

    def answer(request: httpx.Request) -> httpx.Response:
        note(request)
        if not request.url.path.endswith("/run"):
            return httpx.Response(200, json={"text": "taken"})
        at = "2026-01-01T00:00:00Z"
        run = {"dag_id": "numbers", "run_id": run_id, "logical_date": at, "start_date": at, "run_after": at,
               "data_interval_start": at, "data_interval_end": at, "end_date": None, "partition_key": None,
               "run_type": "manual", "state": "running", "consumed_asset_events": []}  # fmt: skip
        begin = {"dag_run": run, "max_tries": MAX_TRIES, "should_retry": True}
        if resumes is not None:
            begin |= {"next_method": "execute_complete", "next_kwargs": serialize({"event": resumes})}
        return httpx.Response(200, json=begin)

    client = Client(base_url=None, dry_run=True, token="", transport=httpx.MockTransport(answer))
    task = TaskInstance(
        id=uuid.uuid4(), dag_version_id=uuid.UUID(int=1), task_id="train", dag_id="numbers", run_id=run_id,
        try_number=number, map_index=map_index, queue="default",
    )  # fmt: skip
    supervise_task(
        ti=task, bundle_info=BundleInfo(name="tests", version=None), dag_rel_path=DAG_FILE, token="", client=client,
        log_path=f"{run_id}.attempt={number}.log",
    )  # fmt: skip


if __name__ == "__main__":
    for module in ("dag_processing.bundles.local", "dag_processing.dagbag", "sdk.execution_time.task_runner"):
        importlib.import_module(f"airflow.{module}")

    from testbed.deadlines import import_all

    import_all()
    serve(main)
