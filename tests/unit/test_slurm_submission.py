"""Arguments and script of a job. The script runs in a real shell, with stand-ins for Slurm's programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.slurm.job_ends import setup_report
from airflow_provider_dtrain.core.slurm.node_shape import NodeShape
from airflow_provider_dtrain.core.slurm.options import SRUN_OPTIONS, slurm_options
from airflow_provider_dtrain.core.slurm.submission import JobRequest, batch_script, sbatch_arguments, srun_arguments


def request(**values: Any) -> JobRequest:
    fields: dict[str, Any] = {
        "name": "dtrain-s-1", "shape": NodeShape(nodes=2, slots_per_node=4), "time_limit_s": 3600, "warning_s": 300,
        "loader": "print('a \"b\" $HOME `id`')", "stdin": "secret",
    }  # fmt: skip
    return JobRequest(**{**fields, **values})


def test_a_job_has_the_arguments_that_make_it_one_gang() -> None:
    options = slurm_options(
        {"partition": "gpu", "account": "lab", "qos": "high", "cpus_per_slot": 8, "memory_per_slot": "32G"}
        | {"time_min": "30m", "gres_type": "a100", "sbatch_options": ["-C fast"]}
    )
    assert sbatch_arguments(options, request(excluded_nodes=("n1", "n2", "m7"))) == [
        "--parsable", "--no-requeue", "--job-name=dtrain-s-1", "--dependency=singleton", "--partition=gpu",
        "--account=lab", "--qos=high", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=32",
        "--gpus-per-node=a100:4", "--mem=131072M", "--time=01:00:00", "--time-min=00:30:00", "--exclude=n[1-2],m7",
        "--signal=URG@300", "--output=/dev/null", "-C", "fast",
    ]  # fmt: skip
    assert srun_arguments(options, request()) == [
        "--job-name=dtrain", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0",
        "--cpus-per-task=32", "--cpu-bind=none", "--mem=0", "--mpi=none", "--input=all", "--export=ALL",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "expected", "missing"),
    [
        ({"slots": "cpu"}, "--cpus-per-task=4", "gpus-per-node"),
        ({"slots": "cpu", "cpus_per_slot": 3, "memory_per_cpu": "2G"}, "--mem-per-cpu=2048M", "--mem="),
        ({}, "--gpus-per-node=4", "cpus-per-task"),
        ({"gres_name": "gpu"}, "--gres=gpu:4", "gpus-per-node"),
        ({"gres_name": "gpu", "gres_type": "a100"}, "--gres=gpu:a100:4", "gpus-per-node"),
        ({"clusters": "c2"}, "--clusters=c2", "--mem"),
        ({"output": "/scratch/%j"}, "--output=/scratch/%j", "/dev/null"),
        ({"time_min": "5h"}, "--time-min=01:00:00", "05:00"),
    ],
)
def test_resources_follow_from_the_options(document: dict[str, Any], expected: str, missing: str) -> None:
    found = sbatch_arguments(slurm_options(document), request())
    assert expected in found
    assert not [one for one in found if missing in one]


def test_a_process_without_a_slot_gets_no_device() -> None:
    found = sbatch_arguments(
        slurm_options({"memory_per_slot": "1G"}), request(shape=NodeShape(nodes=1, slots_per_node=0))
    )
    assert not [one for one in found if "gpu" in one or "gres" in one]
    assert "--mem=1024M" in found


def test_generated_options_are_left_out() -> None:
    names = ["parsable", "no-requeue", "dependency", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task"] + (
        ["gpus-per-node", "mem", "time", "signal", "output"]
    )
    options = {"cpus_per_slot": 1, "memory_per_slot": "1G", "without_options": names}
    assert sbatch_arguments(slurm_options(options), request()) == ["--job-name=dtrain-s-1"]
    without = slurm_options({"cpus_per_slot": 1, "without_options": [f"srun:{name}" for name in SRUN_OPTIONS]})
    assert srun_arguments(without, request()) == []


@pytest.mark.parametrize("name", ["", "a b", "a,b", "-a", "a\nb", "a" * 300, "a;b", "ä"])
def test_a_name_that_cannot_be_searched_for_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a job"):
        request(name=name)


def test_a_script_that_slurm_refuses_is_refused_before() -> None:
    with pytest.raises(ValueError, match="4194304"):
        batch_script(slurm_options({}), request(stdin="x" * 5_000_000))
    for text in ("a\0b", "a\rb"):
        with pytest.raises(ValueError, match="NUL"):
            batch_script(slurm_options({}), request(stdin=text))


def run(
    folder: Path, setup: str, *, srun: str = "", stdin: str = "secret", **document: Any
) -> tuple[int, str, Any, str]:
    """Return exit code, standard error, arguments and input of srun, and the comment of the job."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    recorder = "import json, sys; json.dump([sys.argv[1:], sys.stdin.read()], open(sys.argv[0] + '.json', 'w'))"
    (programs / "recorder").write_text(f"#!{sys.executable}\n{recorder}\n")
    (programs / "srun").write_text(f'#!/bin/sh\n"{programs}/recorder" "$@" || exit 99\n{srun}\n')
    (programs / "scontrol").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{folder}/comment\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    (folder / ".bash_profile").write_text(f"PATH={programs}:$PATH\n")
    script = folder / "script"
    script.write_text(batch_script(slurm_options({"setup": setup, **document}), request(stdin=stdin)))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "SLURM_JOB_ID": "7", "TMPDIR": str(folder)}
    argv = ["bash", "-l", str(script)]
    done = subprocess.run(argv, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=False)
    record, comment = programs / "recorder.json", folder / "comment"
    called = json.loads(record.read_text()) if record.exists() else None
    text = comment.read_text() if comment.exists() else ""
    assert done.stdout == b""
    assert [path.name for path in folder.glob("tmp.*")] == []
    return done.returncode, done.stderr.decode(), called, text


@pytest.mark.parametrize("stdin", ["", "one line", "a\nEOF\n$HOME `id` \\ '\"\n", "END_\n" * 3, "é\n\n\n"])
def test_the_step_gets_loader_and_input_as_they_are(tmp_path: Path, stdin: str) -> None:
    code, _, (arguments, text), comment = run(tmp_path, "", stdin=stdin)
    assert code == 0
    assert arguments[-3:] == ["python3", "-c", "print('a \"b\" $HOME `id`')"]
    assert text == (stdin if not stdin or stdin.endswith("\n") else f"{stdin}\n")
    assert comment == ""


def test_setup_lines_cannot_end_their_own_text_or_take_slurm_away(tmp_path: Path) -> None:
    setup = "srun() { exit 5; }\ntail() { exit 6; }\nPATH=/nowhere\necho <<'END'\nx\nEND\n"
    code, _, called, _ = run(tmp_path, setup)
    assert (code, called[1]) == (0, "secret\n")


@pytest.mark.parametrize(
    ("setup", "code", "text"),
    [
        ("true\nfalse\n", 1, "Line 2 of the setup lines failed."),
        ("exit 7", 7, ""),
        ("exit 0", 1, "The setup lines called exit."),
        ("if", 2, "syntax error"),
        ("echo 'unclosed", 2, "unexpected EOF"),
        ("set -u\necho $NOT_THERE", 1, "NOT_THERE: unbound variable"),
        ("echo out\necho err >&2\nnot-a-program", 127, "out\nerr\n"),
    ],
)
def test_setup_lines_that_fail_start_nothing_and_report(tmp_path: Path, setup: str, code: int, text: str) -> None:
    exit_code, stderr, called, comment = run(tmp_path, setup)
    assert (exit_code, called) == (code, None)
    update, job, field = comment.splitlines()
    assert (update, job) == ("update", "jobid=7")
    report = setup_report(field.removeprefix("comment="))
    assert report is not None
    assert (report.phase, report.exit_code) == ("setup", code)
    assert text in report.text + "\n"
    assert text in stderr


def test_a_step_that_fails_reports_its_last_bytes_within_slurms_limit(tmp_path: Path) -> None:
    flood = "i=0; while [ $i -lt 3000 ]; do echo line $i of standard error >&2; i=$((i+1)); done; echo last; exit 3"
    code, stderr, _, comment = run(tmp_path, "echo quiet", srun=flood)
    assert code == 3
    assert len(comment.splitlines()[2].removeprefix("comment=")) <= 1024
    report = setup_report(comment.splitlines()[2].removeprefix("comment="))
    assert report is not None
    assert report.phase == "srun"
    assert report.text.endswith("line 2999 of standard error\nlast")
    assert "line 0 of" in stderr, "the output of the job has everything"


def test_a_step_that_a_signal_kills_shows_no_secret(tmp_path: Path) -> None:
    code, stderr, called, comment = run(tmp_path, "", srun="kill -9 $$")
    assert (code, called[1]) == (137, "secret\n")
    assert "secret" not in stderr
    report = setup_report(comment.splitlines()[2].removeprefix("comment="))
    assert report is not None
    assert report.exit_code == 137
    assert "secret" not in report.text


def test_without_the_comment_nothing_is_reported(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 4", without_options=["comment"])[::3] == (4, "")
