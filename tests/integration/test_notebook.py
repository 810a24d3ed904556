"""The notebook of the Python client on a real Airflow that trains: its outputs are those that are committed.

``DTRAIN_WRITE_NOTEBOOK=1 pytest tests/integration/test_notebook.py`` writes the outputs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.cli.experiments_create import DAG_FILE
from testbed import notebook
from testbed.standalone import Standalone, wait_until

pytest.importorskip("pandas")
pytestmark = [pytest.mark.airflow, pytest.mark.torch, pytest.mark.slow, pytest.mark.nightly]


def test_the_outputs_of_the_notebook_are_those_of_a_real_search(tmp_path: Path, monkeypatch) -> None:
    home, dags, work = tmp_path / "home", tmp_path / "dags", tmp_path / "work"
    for folder in (home, dags):
        folder.mkdir()
    shutil.copytree(notebook.FOLDER, work, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__"))
    (dags / "dtrain_experiment.py").write_text(DAG_FILE)
    airflow = Standalone(home, dags)
    try:
        airflow.start()
        command = [sys.executable, "-m", "airflow", "dtrain", "hosts", "add", "local", "--slots", "cpu:2"]
        subprocess.run(command, env=airflow.environment, check=True, timeout=180)
        wait_until(
            lambda: any(dag["dag_id"] == "dtrain_experiment" for dag in airflow.api("GET", "/dags?limit=100")["dags"]),
            timeout_s=240,
            what="the DAG of experiments",
        )
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("DTRAIN_SERVER", airflow.base)
        monkeypatch.setenv("DTRAIN_TOKEN", airflow.token("admin"))
        found = notebook.executed(work)
    finally:
        airflow.stop()
    if os.environ.get("DTRAIN_WRITE_NOTEBOOK") == "1":
        notebook.write(found)
    committed = [cell["outputs"] for cell in notebook.cells() if cell["cell_type"] == "code"]
    assert found == committed
    assert [one["output_type"] for outputs in committed for one in outputs].count("execute_result") >= 3
