"""Samples of README.md and of pages in docs/ run as they stand, on this machine."""

from __future__ import annotations

import logging
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from tests.support.engines import Engine
from tests.support.search_tasks import Run, local_hook
from tests.support.warm_ranks import run_program

pytestmark = [pytest.mark.torch, pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def dags_of(text: str, folder: Path) -> list[DAG]:
    """Return the DAGs of a DAG file."""
    file = folder / "dag.py"
    file.write_text(text)
    found: list[DAG] = []
    original = DAG.__exit__

    def leave(dag: DAG, *error: Any) -> None:
        found.append(dag)
        original(dag, *error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DAG, "__exit__", leave)
        runpy.run_path(str(file))
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
async def test_the_task_of_the_first_page_trains_a_script_that_runs_under_torchrun(
    engine: Engine, caplog: pytest.LogCaptureFixture, tmp_path: Path, page: str
) -> None:
    caplog.set_level(logging.INFO)
    (source,) = blocks(page, "python")
    (dag,) = dags_of(source, tmp_path)
    (task,) = dag.tasks
    document = dict(task.config)
    folder = tmp_path / document["model_dir"]
    folder.mkdir()
    (diff,) = blocks("docs/coming-from-torchrun.md", "diff")
    lines = diff.splitlines(keepends=True)
    (folder / "train.py").write_text("".join(line[1:] for line in lines if line[0] in " -\n"))
    # This machine has two slots.
    document["resources"] = {**document["resources"], "slots_per_trial": 2, "pool": "local"}
    outcome = await engine.carry(engine.submit(document, folder=tmp_path), most_s=240)
    assert outcome is not None
    assert outcome.state == "completed", (outcome, caplog.text[-3000:])
    assert "2 ranks, loss" in caplog.text


def test_the_search_of_the_tutorial_finds_a_model_that_separates_the_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, dag_file = blocks("docs/first-search.md", "python")
    (search,) = blocks("docs/first-search.md", "yaml")
    (tmp_path / "home").mkdir()
    folder = tmp_path / "dags" / "rings"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(program)
    (tmp_path / "dags" / "search.yaml").write_text(search)
    (dag,) = dags_of(dag_file, tmp_path / "dags")
    assert {"show"} < {task.task_id for task in dag.tasks}
    with local_hook(tmp_path / "home", monkeypatch):
        run = Run()
        monkeypatch.setattr(Run, "context", in_folder(Run.context, tmp_path / "dags"))
        document = dict(load_yaml(search))
        assert assemble(None, document).config.searcher.max_trials == 12
        # A third of them suffices here.
        document["searcher"] = {**document["searcher"], "max_trials": 4}
        plan = run.plan(document)
        results = [run.trial(spec) for spec in plan]
        best = run.best(plan)
    assert sum(best["trials"].values()) == 4
    assert best["trials"]["completed"] >= 1
    assert best["metric"] == max(result["metric"] for result in results if result["metric"] is not None) > 0.6


def in_folder(context: Any, folder: Path) -> Any:
    """Return the contexts of tasks whose DAG file is in a folder."""

    def changed(*args: Any, **options: Any) -> Any:
        found = context(*args, **options)
        found["dag"].fileloc = str(folder / "dag.py")
        return found

    return changed


def test_the_program_of_the_search_also_runs_on_its_own(tmp_path: Path) -> None:
    code, output = run_program(blocks("docs/first-search.md", "python")[0], tmp_path)
    assert code == 0, output


@pytest.mark.parametrize("page", ["docs/operators.md", "docs/search.md"])
def test_parts_of_a_dag_file_make_tasks(page: str) -> None:
    """Names that the text around a part has introduced are given to it."""
    for number, part in enumerate(blocks(page, "python")):
        with DAG(f"part{number}", schedule=None) as dag:

            @task
            def deploy(model: object) -> object:
                return model

            given = {
                "DAG": DAG,
                "task": task,
                "deploy": deploy,
                "train": TrialOperator(task_id="before", config="x.yaml"),
                "RenderConfigOperator": RenderConfigOperator,
                "BatchInferenceOperator": BatchInferenceOperator,
            }
            made: dict[str, Any] = {"__name__": "part", **given}
            exec(compile(part, f"{page} part {number}", "exec"), made)
        others = [one for one in made.values() if isinstance(one, DAG)]
        assert len(dag.tasks) > 1 or any(one.tasks for one in others) or "def " in part, (page, number)
