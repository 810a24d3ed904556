"""Runtimes of containers that hang, fail, or print what is no answer: each has a time limit and a sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.files.layout import Layout, RunFolder
from airflow_provider_dtrain.supervisor.images import download
from airflow_provider_dtrain.supervisor.images.garbage import collect_images
from airflow_provider_dtrain.supervisor.machine import container_runtime
from airflow_provider_dtrain.supervisor.machine.container_runtime import run_command
from airflow_provider_dtrain.supervisor.refusal import Refused
from airflow_provider_dtrain.supervisor.run import container
from airflow_provider_dtrain.supervisor.run.container import Container, end_container

FLOOD = "head -c 20000000 /dev/zero | tr '\\0' x"
HANG = "exec sleep 1000"
Answers = Callable[..., None]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Sets what the commands of podman do: lines of a shell by command. Others succeed and print nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(container, "CONTAINER_END_S", 0.2)

    def answers(**commands: str) -> None:
        # Commands that answer are not in a hurry: a busy machine may take a second to start one.
        limit_s = 1.0 if any(HANG in lines for lines in commands.values()) else 60.0
        monkeypatch.setattr(download, "RUNTIME_S", limit_s)
        monkeypatch.setattr(container_runtime, "RUNTIME_S", limit_s)
        monkeypatch.setattr(container, "CONTAINER_START_S", limit_s)
        cases = "".join(f"{name}) {lines};;\n" for name, lines in commands.items())
        program = folder / "podman"
        program.write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
        program.chmod(0o755)

    return answers


def provide(tmp_path: Path) -> Any:
    layout = Layout(str(tmp_path / "remote"), str(tmp_path / "state"), "none")
    return download.provide(layout, "podman", "a/b:1", [], always=False, timeout_s=download.RUNTIME_S)


@pytest.mark.parametrize(
    ("commands", "code", "words"),
    [
        ({"image": HANG}, "runtime", "podman does not answer: 'podman image inspect' did not answer within 1 s"),
        ({"image": "exit 1", "version": HANG}, "runtime", "'podman version' did not answer within 1 s"),
        ({"image": "exit 1", "pull": HANG}, "image", "image 'a/b:1': 'podman pull --quiet' did not answer"),
        ({"image": "exit 1", "pull": "trap '' TERM; " + HANG}, "image", "did not answer within 1 s"),
        # Its child keeps the output open.
        ({"image": "exit 1", "pull": f"{HANG} & exit 0"}, "image", "did not answer within 1 s"),
        ({"image": "exit 1", "pull": f"{FLOOD}; {FLOOD} >&2; exit 3"}, "image", "provide image 'a/b:1': x{600}$"),
        ({"image": "exit 1", "pull": "exit 3"}, "image", "cannot provide image 'a/b:1': exit status 3"),
        ({"image": "exit 1"}, "image", "podman has no image 'a/b:1' after its download"),
        ({"image": "printf '\\377\\0nonsense'"}, "runtime", "podman describes image 'a/b:1' in an unknown form"),
        ({"image": "echo '[]'"}, "runtime", "in an unknown form"),
        ({"image": "echo '[{\"Id\": null, \"RepoDigests\": 5}]'"}, "runtime", "in an unknown form"),
        ({"image": FLOOD}, "runtime", "in an unknown form"),
    ],
)  # fmt: skip
def test_a_download_by_a_runtime_that_does_not_work_is_refused_in_time(
    podman: Answers, tmp_path: Path, commands: dict[str, str], code: str, words: str
) -> None:
    podman(**commands)
    begun = time.monotonic()
    with pytest.raises(Refused, match=words) as caught:
        provide(tmp_path)
    assert caught.value.code == code
    assert len(caught.value.message) < 1000
    assert time.monotonic() - begun < 20


def test_a_command_keeps_a_bounded_part_of_its_output(podman: Answers) -> None:
    podman(ps=f"{FLOOD}; echo wrong >&2; exit 1")
    done = run_command(["podman", "ps"], 30)
    assert (done.status, len(done.output), done.reason) == (1, 4 << 20, "wrong")


def folder_of(tmp_path: Path) -> RunFolder:
    folder = Layout(str(tmp_path), str(tmp_path), "none").run("t1.1.7")
    os.makedirs(folder.path)
    return folder


def started(folder: RunFolder) -> None:
    Path(folder.file("container.json")).write_text(json.dumps({"runtime": "podman"}))


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ({"ps": HANG}, "podman cannot list its containers: 'podman ps --all' did not answer within 1 s"),
        ({"ps": "echo wrong >&2; exit 1"}, "podman cannot list its containers: wrong"),
        ({"ps": "echo Success; echo --all"}, r"podman lists its containers in an unknown form: 'Success\\n--all'"),
        ({"ps": FLOOD}, "podman lists its containers in an unknown form: 'xxx"),
        ({"ps": "echo 0123456789abcdef", "rm": HANG}, "podman has not ended container 0123456789ab: .*did not answer"),
        ({"ps": "echo 0123456789abcdef", "rm": "exit 0"}, "podman has not ended container 0123456789ab"),
        ({"ps": "yes 0123456789abcdef0123456789abcdef | head -100000"}, "has not ended container 0123456789ab"),
    ],
)  # fmt: skip
def test_a_runtime_that_proves_nothing_leaves_the_container_in_doubt(
    podman: Answers, tmp_path: Path, commands: dict[str, str], words: str
) -> None:
    podman(**commands)
    folder = folder_of(tmp_path)
    started(folder)
    reason = end_container(folder)
    assert reason is not None
    assert re.search(words, reason), reason
    assert folder.has("container.json")
    podman()
    assert end_container(folder) is None
    assert not folder.has("container.json")


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ({"run": HANG}, "The container did not start within 1 s: without a message"),
        ({"run": "echo begins; " + HANG}, "The container did not start within 1 s: begins"),
        ({"run": "echo wrong >&2; exit 125"}, r"podman ended the container \(exit code 125\): wrong"),
        ({"run": f"{FLOOD}; exit 1"}, r"\(exit code 1\): x{600}$"),
        ({"run": "kill -9 $$"}, r"\(exit code -9\): without a message"),
        ({"ps": HANG}, "A container of an earlier start is left: podman cannot list its containers"),
    ],
)
def test_a_start_by_a_runtime_that_does_not_work_is_refused_in_time(
    podman: Answers, tmp_path: Path, commands: dict[str, str], words: str
) -> None:
    podman(**commands)
    folder = folder_of(tmp_path)
    if "ps" in commands:
        started(folder)
    one = Container(folder, {"runtime": "podman", "argv": ["podman", "run"], "modules": []})
    begun = time.monotonic()
    with pytest.raises(Refused, match=words) as caught:
        one.start([], [])
    assert caught.value.code in ("container", "busy")
    assert len(caught.value.message) < 1000
    podman()
    assert one.kill() is None
    if one.client:
        os.kill(one.client, signal.SIGKILL)
        assert one.wait_client(10)
    assert time.monotonic() - begun < 20


def test_images_of_apptainer_are_files_that_are_collected(podman: Answers, tmp_path: Path) -> None:
    podman()
    folder = tmp_path / "bin"
    (folder / "podman").rename(folder / "apptainer")
    # apptainer pull --force FILE docker://IMAGE
    (folder / "apptainer").write_text('#!/bin/sh\necho "$4" > "$3"; case $4 in *bad*) exit 1;; esac\n')
    layout = Layout(str(tmp_path / "remote"), str(tmp_path / "state"), "none")
    layout.ensure()
    found = download.provide(layout, "apptainer", "a/b:1", [], always=False, timeout_s=5)
    assert Path(found["image"]).read_text() == "docker://a/b:1\n"
    with pytest.raises(Refused, match="apptainer cannot provide image 'docker://a/bad'"):
        download.provide(layout, "apptainer", "a/bad", [], always=False, timeout_s=5)
    assert [file.suffix for file in sorted((tmp_path / "remote/images").iterdir())] == [".json", ".sif"]
    assert collect_images(layout, 60, None) == {}
    ((name, size),) = collect_images(layout, 0, None).items()
    assert size == 15
    assert collect_images(layout, 0, {name}) == {name: 15}
    assert list((tmp_path / "remote/images").iterdir()) == []
