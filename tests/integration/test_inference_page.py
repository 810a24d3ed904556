"""The tutorial of docs/inference.md works as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA, PROCESSOR, DAG = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "inference.md").read_text(), re.MULTILINE | re.DOTALL
)

pytest.importorskip("pyarrow")


@pytest.mark.nightly
@pytest.mark.torch
def test_the_tutorial_labels_all_of_its_rows_and_notices_another_model_file(tmp_path: Path) -> None:
    (tmp_path / "make_example.py").write_text(DATA)
    (tmp_path / "predict.py").write_text(PROCESSOR)
    section = {
        "processor": "predict:Classifier",
        "inputs": {"path": str(tmp_path / "images.parquet")},
        "outputs": {"path": str(tmp_path / "labels"), "columns": ["id"], "row_id": "row"},
        "batch_size": 1024,
    }
    (tmp_path / "config.yaml").write_text(json.dumps({"inference": section}))
    python(tmp_path, "make_example.py")
    python(tmp_path, *INFER)
    assert json.loads((tmp_path / "labels" / "_manifest.json").read_text())["rows"] == 20_000

    python(tmp_path, "-c", "import torch; torch.save(torch.nn.Linear(64, 10).state_dict(), 'model.pt')")
    refused = python(tmp_path, *INFER, code=2)
    assert "results that depend on other code" in refused
    assert "model.pt" in refused


def test_the_dag_of_the_tutorial_is_one(tmp_path: Path) -> None:
    found: dict[str, object] = {}
    exec(compile(DAG.replace("\nlabel_images()\n", "\nfound = label_images()\n"), "tutorial", "exec"), found)
    assert {task.task_id for task in found["found"].tasks} == {"predict", "report"}  # type: ignore[attr-defined]


INFER = ("-m", "airflow_provider_dtrain.train.inference", "--config", "config.yaml")


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    return done.stderr
