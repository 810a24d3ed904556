"""Commands: split without a shell, and Determined's launcher taken out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.config import ExperimentConfig, ForeignFieldWarning, assemble
from airflow_provider_dtrain.core.config.commands import split_command
from airflow_provider_dtrain.core.config.merge import Override
from airflow_provider_dtrain.errors import ConfigError
from tests.support.budgets import budget

LAUNCH = "python3 -m determined.launch.torch_distributed"


@given(st.text(alphabet="ab '\"\\ \t\n$;&=é", max_size=20))
@settings(max_examples=budget(500), deadline=None)
def test_a_command_is_split_as_shlex_splits_it(text: str) -> None:
    try:
        expected: Any = shlex.split(text)
    except ValueError:
        expected = None
    try:
        assert split_command(text) == expected
    except ValueError:
        assert expected is None


@pytest.mark.parametrize("command", ["bash -c 'a && b; $X'", "python a.py --x='$A'", r"python a.py \;", "a \"b 'c'\""])
def test_what_is_quoted_needs_no_shell(command: str) -> None:
    assert ExperimentConfig.model_validate({"entrypoint": command}).command == tuple(shlex.split(command))


@pytest.mark.parametrize(
    ("command", "syntax"),
    [
        ("a && b", "&&"),
        ("a; b", ";"),
        ("a > b", ">"),
        ('a "$HOME/x"', "$HOME"),
        ("a `b`", "`"),
        ("a --x=$(b)", "$("),
        ("a 'x'\"'$Y'\"", "$Y"),
    ],
)
def test_what_needs_a_shell_is_named(command: str, syntax: str) -> None:
    with pytest.raises(ConfigError) as error:
        ExperimentConfig.model_validate({"entrypoint": command})
    assert f"entrypoint: {syntax!r} would need a shell" in str(error.value)


@pytest.mark.parametrize(
    ("given_", "command"),
    [
        (f"{LAUNCH} --trial model_def:MyTrial", "model_def:MyTrial"),
        (f"{LAUNCH} --trial=model_def:MyTrial", "model_def:MyTrial"),
        (f"{LAUNCH} model_def:MyTrial", "model_def:MyTrial"),
        (f"{LAUNCH} -- --trial model_def:MyTrial", "model_def:MyTrial"),
        (f"{LAUNCH} python3 train.py --lr 'a b'", "python3 train.py --lr 'a b'"),
        (f"{LAUNCH} -- python3 train.py -- --x", "python3 train.py -- --x"),
        (f"{LAUNCH} train.py --lr 1", "python3 train.py --lr 1"),
        (f"{LAUNCH} -m pkg.train --lr 1", "python3 -m pkg.train --lr 1"),
        (f"{LAUNCH} --no_python ./run.sh", "./run.sh"),
        ("python -u -m determined.launch.torch_distributed train.py", "python -u train.py"),
        (f"{LAUNCH} bash -c 'a && $B'", "bash -c 'a && $B'"),
        ("python -m determined.launch.deepspeed python train.py --x 1", "python train.py --x 1"),
        ("python3 -m determined.launch.deepspeed train.py", "python3 train.py"),
    ],
)
def test_determineds_launcher_is_taken_out_with_a_warning(given_: str, command: str) -> None:
    with pytest.warns(ForeignFieldWarning, match=r"determined.launch.\w+ is left out"):
        text = ExperimentConfig.model_validate({"entrypoint": given_})
    with pytest.warns(ForeignFieldWarning, match="is left out"):
        words = ExperimentConfig.model_validate({"entrypoint": shlex.split(given_)})
    assert text.entrypoint == command
    assert text.command == words.command == ExperimentConfig.model_validate({"entrypoint": command}).command


@pytest.mark.parametrize("options", ["--nproc_per_node 2 --max-restarts=1 --", "--nproc_per_node=2 --standalone"])
def test_options_of_determineds_launcher_are_named_as_without_effect(options: str) -> None:
    effective = assemble(None, {"entrypoint": f"{LAUNCH} {options} train.py"})
    assert effective.config.entrypoint == "python3 train.py"
    assert any("--nproc_per_node" in warning and "has no effect" in warning for warning in effective.warnings)


def test_an_entrypoint_with_the_launcher_is_translated_in_templates_and_below_override_too() -> None:
    template = {"entrypoint": f"{LAUNCH} a.py"}
    assert assemble(template, {}).config.entrypoint == "python3 a.py"
    assert assemble(template, {"entrypoint": Override(f"{LAUNCH} b.py")}).config.entrypoint == "python3 b.py"


@pytest.mark.parametrize(
    "command",
    [
        LAUNCH,
        f"{LAUNCH} --nproc_per_node 2 --",
        f"{LAUNCH} --trial model_def:T extra",
        f"{LAUNCH} --trial 5",
        "python3 -m determined.launch.horovod --autohorovod --trial a:B",
        "python3 -m determined.launch.deepspeed --trial model_def:DeepSpeedTrial",
        "python3 -m determined.launch.deepspeed model_def:DeepSpeedTrial",
        f"{LAUNCH} train.py > log",
    ],
)
def test_a_launcher_that_cannot_be_translated_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="entrypoint"):
        assemble(None, {"entrypoint": command})


def test_the_translated_command_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    command = assemble(None, {"entrypoint": f"{LAUNCH} --nproc_per_node 2 -- train.py --x 'a b'"}).config.command
    done = subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['--x', 'a b']"


def test_the_refusal_of_a_launcher_says_what_to_name_instead() -> None:
    refused = {
        "determined.launch.deepspeed --trial a:B": "name a script that calls deepspeed.init_distributed()",
        "determined.launch.horovod --autohorovod --trial a:B": "module:TrialClass of a PyTorchTrial",
    }
    for command, words in refused.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            assemble(None, {"entrypoint": f"python3 -m {command}"})
