"""State of a folder in git: read without running anything of the repository, and unknown with its reason."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from airflow_provider_dtrain.hosts.work_tree import git_state
from airflow_provider_dtrain.resources.provenance import GitState


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True, timeout=60)
    return done.stdout.decode().strip()


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a folder of a repository with one commit."""
    folder = tmp_path / "repository" / "code"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("pass\n")
    (folder.parent / "README").write_text("")
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-qm", "1")
    return folder


def test_a_folder_without_changes_is_clean(code: Path) -> None:
    commit = git(code, "rev-parse", "HEAD")
    assert git_state(code) == GitState(commit=commit, is_clean=True)
    # Files outside of the folder are not sent.
    (code.parent / "README").write_text("changed")
    assert git_state(code) == GitState(commit=commit, is_clean=True)


@pytest.mark.parametrize("name", ["train.py", "new.py"])
def test_a_changed_and_an_untracked_file_make_it_dirty(code: Path, name: str) -> None:
    (code / name).write_text("changed")
    assert git_state(code) == GitState(commit=git(code, "rev-parse", "HEAD"), is_clean=False)


def test_the_reason_why_it_is_not_known_is_given(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path).problem == "the code is not in a git repository"
    git(tmp_path, "init", "-q", "empty")
    assert git_state(tmp_path / "empty").problem == "the repository has no commit"
    assert git_state(tmp_path / "absent").problem == "the code is not in a git repository"
    (code.parent / ".git" / "config").write_text("[broken")
    assert git_state(code).problem.startswith("git failed: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(code) == GitState(problem="git is not installed")


def test_outside_of_a_repository_git_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "loop").symlink_to("loop")
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "loop"):
        assert git_state(folder) == GitState(problem="the code is not in a git repository")


def test_a_repository_is_found_from_a_link_and_without_a_folder_of_its_own(code: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(code)
    assert git_state(tmp_path / "link").is_clean
    git(tmp_path, "init", "-q", "--bare", "bare")
    assert git_state(tmp_path / "bare" / "hooks").problem.startswith("git failed: ")
    git(code, "init", "-q", "--separate-git-dir", str(tmp_path / "elsewhere"), str(tmp_path / "apart"))
    assert git_state(tmp_path / "apart").problem == "the repository has no commit"


@pytest.mark.parametrize("place", ["code", "code/deep", "tree", "bare/hooks", "apart", "link", "plain", "plain/deep"])
def test_a_folder_is_in_a_repository_exactly_if_git_says_so(code: Path, tmp_path: Path, place: str) -> None:
    root = code.parent
    for folder in ("code/deep", "plain/deep"):
        (tmp_path / folder).mkdir(parents=True)
    git(tmp_path, "init", "-q", str(tmp_path / "code"))
    git(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    git(tmp_path, "init", "-q", "--bare", "bare")
    git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "elsewhere"), "apart")
    (tmp_path / "link").symlink_to(code)
    asked = subprocess.run(["git", "rev-parse", "--git-dir"], cwd=tmp_path / place, capture_output=True, check=False)
    is_outside = git_state(tmp_path / place).problem == "the code is not in a git repository"
    assert is_outside == (asked.returncode != 0) == place.startswith("plain")


def test_a_git_that_hangs_is_ended(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    begun = time.monotonic()
    assert git_state(code, limit_s=0.3) == GitState(problem="git did not answer within 0.3 s")
    assert time.monotonic() - begun < 20


def test_variables_of_git_name_no_other_repository(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert git_state(code).is_clean


def test_programs_that_the_settings_of_a_repository_name_do_not_run(code: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    (code / ".gitattributes").write_text("*.py filter=evil\n")
    git(code, "add", ".")
    git(code, "commit", "-qm", "2")
    for name in ("filter.evil.clean", "filter.evil.process", "core.fsmonitor", "pager.status"):
        git(code, "config", name, str(program))
    git(code, "config", "filter.evil.required", "true")
    git(code, "config", "core.hooksPath", str(program.parent))
    program.with_name("post-index-change").symlink_to(program)
    os.utime(code / "train.py", (1, 1))
    assert git_state(code) == GitState(commit=git(code, "rev-parse", "HEAD"), is_clean=True)
    assert not mark.exists()


def test_files_of_submodules_are_not_compared_and_their_settings_run_nothing(code: Path, tmp_path: Path) -> None:
    other, mark = tmp_path / "other", tmp_path / "ran"
    git(tmp_path, "init", "-q", "other")
    (other / "part.py").write_text("pass\n")
    (other / ".gitattributes").write_text("*.py filter=evil\n")
    git(other, "add", ".")
    git(other, "commit", "-qm", "1")
    git(code, "submodule", "add", "-q", str(other), "part")
    git(code, "commit", "-qm", "2")
    git(code / "part", "config", "filter.evil.clean", f"touch {mark}; cat")
    os.utime(code / "part" / "part.py", (1, 1))
    found = git_state(code)
    assert (found.is_clean, found.problem) == (None, "files of submodules are not compared")
    assert found.commit == git(code, "rev-parse", "HEAD")
    assert not mark.exists()
