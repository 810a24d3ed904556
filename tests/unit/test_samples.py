"""Samples of the pages: commands that the parsers accept, configurations that are valid, programs that compile."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_dtrain.client.main import parser as client_parser
from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.terminal.arguments import Group
from airflow_provider_dtrain.terminal.definition import commands
from tests.support.script_tools import script_tool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    with script_tool("samples") as found:
        yield found


@pytest.fixture(scope="module")
def samples(tool: ModuleType) -> list[Any]:
    return [sample for path in tool.pages() for sample in tool.samples(path)]


def provider_parser() -> argparse.ArgumentParser:
    """Return the parser of ``airflow dtrain``, as Airflow makes it from the same commands."""
    top = argparse.ArgumentParser(prog="airflow dtrain")
    below = top.add_subparsers(required=True)
    for one in commands():
        added = below.add_parser(one.name)
        if isinstance(one, Group):
            verbs = added.add_subparsers(required=True)
            pairs = [(verbs.add_parser(command.name), command) for command in one.commands]
        else:
            pairs = [(added, one)]
        for parser, command in pairs:
            for arg in command.args:
                arg.add_to_parser(parser)
    return top


def commands_in(text: str) -> list[list[str]]:
    """Return the words of the commands of both programs in a text for a shell."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if "dtrain " not in line:
            continue
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if word in ("do", "then", "$") or set(word) <= set(";&|()<>"):
                # A file follows a redirection. It is no word of the command.
                if command[:1] == ["dtrain"] or command[:2] == ["airflow", "dtrain"]:
                    found.append(command)
                command = [word] if set(word) <= set("<>") else []
            else:
                command.append(re.sub(r"\$\w+", "1", word))
    return found


def refusal(parser: argparse.ArgumentParser, words: list[str]) -> str:
    """Return the complaint of a parser about arguments, empty if it accepts them."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parser.parse_args(words)
    except SystemExit as end:
        return complaint.getvalue().strip().splitlines()[-1] if end.code else ""
    return ""


def test_the_parsers_accept_every_command_of_the_pages(samples: list[Any]) -> None:
    here, laptop = provider_parser(), client_parser()
    found = [
        (sample, words)
        for sample in samples
        if sample.language in ("bash", "console", "sh")
        for words in commands_in(sample.text)
    ]
    assert len(found) > 60
    refused = [
        (sample.page, shlex.join(words), complaint)
        for sample, words in found
        if (complaint := refusal(laptop if words[0] == "dtrain" else here, words[1 + (words[0] == "airflow") :]))
    ]
    assert refused == []


def test_a_wrong_command_would_be_noticed() -> None:
    text = "for x in 1; do\n  airflow dtrain hosts add a --connection b\ndone\n$ dtrain trials list --nope | head\n"
    wrong = commands_in(text)
    assert wrong == [
        ["airflow", "dtrain", "hosts", "add", "a", "--connection", "b"],
        ["dtrain", "trials", "list", "--nope"],
    ]
    assert "required" in refusal(provider_parser(), ["hosts"])
    assert "--connection" in refusal(provider_parser(), wrong[0][2:])
    assert "--nope" in refusal(client_parser(), wrong[1][1:])


def test_the_configurations_of_the_pages_are_valid(samples: list[Any]) -> None:
    sections = {"docs/inference-data.md": "inference"}
    inference = {"processor": "predict:Classifier", "inputs": {"path": "/data"}, "outputs": {"path": "/results"}}
    checked, wrong = 0, []
    for sample in samples:
        if sample.language != "yaml":
            continue
        found = load_yaml(sample.text)
        if "services" in found:
            # A file of Compose.
            continue
        if not set(found) <= set(ExperimentConfig.model_fields):
            # Part of a section, which the text around it names.
            found = {sections[sample.page]: found}
        whole = dict(found)
        if "inference" in found:
            whole["inference"] = {**inference, **found["inference"]}
        else:
            whole.setdefault("entrypoint", "python train.py")
        whole.pop("template", None)
        if "searcher" in found:
            whole.setdefault("hyperparameters", {"lr": {"type": "log", "minval": -3, "maxval": -1}})
        try:
            assemble(None, whole)
            checked += 1
        except Exception as error:
            wrong.append((sample.page, sample.number, str(error)))
    assert wrong == []
    assert checked > 20


def test_programs_of_the_pages_compile(samples: list[Any]) -> None:
    programs = [sample for sample in samples if sample.language == "python"]
    assert len(programs) > 40
    for sample in programs:
        compile(sample.text, f"{sample.page} block {sample.number}", "exec")


def test_every_page_says_where_to_go_next(tool: ModuleType) -> None:
    without = [path.name for path in tool.pages() if not tool.figures(path).has_next_step]
    # README.md ends with its table of pages.
    assert without == ["README.md"]


def test_pictures_and_diagrams_have_a_text_for_those_who_do_not_see_them(tool: ModuleType) -> None:
    for path in tool.pages():
        text = path.read_text()
        for diagram in re.findall(r"^```mermaid\n(.*?)^```", text, re.M | re.S):
            assert re.search(r"^ *accTitle: \S", diagram, re.M), path
            assert re.search(r"^ *accDescr: \S", diagram, re.M), path
        assert re.findall(r"!\[\]\(|<img (?![^>]*alt=\"[^\"])", text) == [], path


def test_pages_that_explain_have_a_picture(tool: ModuleType) -> None:
    explaining = ("life-of-a-trial", "failures", "scheduling", "trust", "training/reproducibility", "architecture")
    assert [name for name in explaining if not tool.figures(ROOT / "docs" / f"{name}.md").pictures] == []


def test_samples_that_count_as_run_have_a_test_that_reads_their_page(tool: ModuleType) -> None:
    for page, (languages, test) in tool.RUN_BY.items():
        text = (ROOT / test).read_text()
        assert (
            Path(page).stem in text
            or Path(page).stem.removeprefix("coming-from-") in text
            or (page.startswith("docs/training/") and '(DOCS / "training").glob' in text)
        ), (page, test)
        assert {sample.language for sample in tool.samples(ROOT / page)} & languages == languages


def test_the_figures_count_every_block_once(tool: ModuleType, samples: list[Any]) -> None:
    quickstart = [sample for sample in samples if sample.page == "docs/quickstart.md"]
    assert {sample.way for sample in quickstart} == {tool.Way.RUN, tool.Way.CHECKED}
    report = tool.report()
    found = re.search(r"samples: (\d+) run by a test, (\d+) checked by a test, (\d+) are output", report)
    assert found is not None
    assert sum(map(int, found.groups())) == len(samples)
