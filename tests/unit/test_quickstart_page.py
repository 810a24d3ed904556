"""The program, the DAG and the commands of docs/quickstart.md are valid as they stand."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm_ranks import run_program

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
    code, output = run_program(PROGRAM, tmp_path)
    assert code == 0, output
    right = [int(count) for count in re.findall(r"(\d+) of 1024 right", output)]
    assert len(right) == 5
    assert right[0] < right[-1] > 950


@pytest.mark.airflow
def test_the_dag_file_defines_the_dag_that_the_commands_trigger(tmp_path: Path) -> None:
    file = tmp_path / "first_training.py"
    file.write_text(DAG_FILE)
    dag = runpy.run_path(str(file))["dag"]
    assert set(re.findall(r"airflow dags (?:unpause|trigger) (\w+)", SHELL)) == {dag.dag_id, "dtrain_environment"}
    assert set(json.loads(re.findall(r"--conf '(.+?)'", SHELL)[0])) == set(dag.params)


@pytest.mark.airflow
@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_a_command_has_arguments_that_the_command_line_accepts(command: str, parser: ArgumentParser) -> None:
    parser.parse_args(shlex.split(command, comments=True)[1:])


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of scripts/quickstart, which CI runs on the whole page each night."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "tools"))
    import quickstart

    return quickstart


def test_ci_finds_the_blocks_that_it_treats_in_its_own_way(tool: Any) -> None:
    sections = tool.blocks(PAGE)
    assert list(sections) == list(range(1, 9))
    texts = {number: [block.text for block in found] for number, found in sections.items()}
    assert sum("export AIRFLOW_HOME" in text for text in texts[2]) == 1
    assert texts[2].count(f"{tool.STANDALONE}\n") == 1
    assert [tool.file_of(block) for block in sections[3]] == [
        "$AIRFLOW_HOME/dags/first/train.py",
        "$AIRFLOW_HOME/dags/first_training.py",
    ]
    assert texts[4][0].startswith(f"{tool.AFTER_THE_FILE} first_training")
    assert texts[4][-1].startswith(tool.AFTER_THE_TRIGGER)
    assert texts[5][0].startswith(tool.AFTER_THE_TRIAL)
    assert texts[6][1].startswith(f"{tool.AFTER_THE_FILE} dtrain_environment")
    assert texts[6][-1].startswith(f"{tool.AFTER_THE_TRIAL} 2")
    assert f"`{tool.READY}`" in PAGE
    assert tool.promised(PAGE) == ["tensor([0, 1])"]
    assert all(block.language in {"bash", "python"} for found in sections.values() for block in found)


def test_a_block_without_the_name_of_its_file_is_an_error(tool: Any) -> None:
    with pytest.raises(tool.QuickstartError, match="must name the file of this block"):
        tool.file_of(tool.Block("python", "pass", "a program:"))


def test_ci_gives_the_page_an_empty_home_and_the_index_of_the_caller(tool: Any, tmp_path: Path) -> None:
    home = tmp_path / "caller"
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text("")
    folder = tmp_path / "empty"
    folder.mkdir()
    caller = {"HOME": str(home), "PATH": "/bin", "AIRFLOW_HOME": "/other", "PYTHONPATH": "/other", "PIP_INDEX_URL": "x"}
    found = tool.environment(folder, caller)
    assert found["HOME"] == str(folder)
    assert found["PIP_CONFIG_FILE"] == str(home / ".config" / "pip" / "pip.conf")
    assert (found["PIP_CACHE_DIR"], found["PIP_INDEX_URL"]) == (str(home / ".cache" / "pip"), "x")
    assert {"AIRFLOW_HOME", "PYTHONPATH"} & found.keys() == set()
    python = subprocess.run(
        ["python3", "-c", "import sys; print(sys.version_info[:2])"], env=found, capture_output=True
    )
    assert python.stdout.decode().strip() == str(sys.version_info[:2])
