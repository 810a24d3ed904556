"""The program, the DAG and the commands of docs/quickstart.md are valid as they stand."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
PROGRAM, DAG_FILE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHELL = "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
COMMANDS = re.findall(r"airflow dtrain [^\n|)>]+", SHELL)


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    from airflow.cli.cli_parser import get_parser

    return get_parser()


@pytest.mark.torch
def test_the_program_learns(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    right = [int(count) for count in re.findall(r"(\d+) of 1024 right", done.stdout)]
    assert len(right) == 5
    assert right[0] < right[-1] > 950


@pytest.mark.airflow
def test_the_dag_file_defines_the_dag_that_the_commands_trigger(tmp_path: Path) -> None:
    file = tmp_path / "first_training.py"
    file.write_text(DAG_FILE)
    dag = runpy.run_path(str(file))["dag"]
    assert set(re.findall(r"airflow dags (?:unpause|trigger) (\w+)", SHELL)) == {dag.dag_id}
    assert set(json.loads(re.findall(r"--conf '(.+?)'", SHELL)[0])) == set(dag.params)


@pytest.mark.airflow
@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_a_command_has_arguments_that_the_command_line_accepts(command: str, parser: ArgumentParser) -> None:
    parser.parse_args(shlex.split(command, comments=True)[1:])
