"""State of a folder in git, on the machine that submits its code."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Final

from airflow_provider_dtrain.resources.provenance import GitState

#: A repository on a file system that hangs delays no submission for longer.
LIMIT_S: Final = 5.0
#: A folder may hold a repository that its user did not make, and whose settings name programs. None of them runs.
_GIT: Final = (
    *("git", "--no-pager", "--no-optional-locks"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
)
_SETTINGS: Final = ("config", "--show-scope", "--name-only", "--get-regexp", r"^filter\.")
# Git would read the settings of submodules as they are.
_STATUS: Final = (
    *("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty"),
    *("--", "."),
)
_FILES: Final = ("ls-files", "--stage", "--", ".")
#: Nothing is asked, and nothing is fetched for a clone that lacks objects.
_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
_COMMIT: Final = re.compile(rb"# branch\.oid ([0-9a-f]{40,64})")
_FILTER: Final = re.compile(r"(?:local|worktree)\s+(filter\..+)\.\w+")
_SUBMODULE: Final = b"160000 "
_NO_REPOSITORY: Final = "the code is not in a git repository"


class _UnknownError(Exception):
    """The state is not known, for the reason in its text."""


def git_state(folder: Path, *, limit_s: float = LIMIT_S) -> GitState:
    """Return the commit of a folder, and whether its files are those of the commit. Blocks.

    :param limit_s: seconds after which the state counts as unknown
    """
    if not _may_be_in_repository(folder):
        return GitState(problem=_NO_REPOSITORY)
    git = _Git(folder, limit_s)
    try:
        lines = git.run(*git.without_own_filters(), *_STATUS).splitlines()
        commit = next((found[1].decode() for line in lines if (found := _COMMIT.fullmatch(line))), None)
        if commit is None:
            return GitState(problem="the repository has no commit")
        is_clean = all(line.startswith(b"# ") for line in lines)
        if is_clean and any(line.startswith(_SUBMODULE) for line in git.run(*_FILES).splitlines()):
            return GitState(commit=commit, problem="files of submodules are not compared")
    except _UnknownError as error:
        return GitState(problem=str(error))
    return GitState(commit=commit, is_clean=is_clean)


def _may_be_in_repository(folder: Path) -> bool:
    """Return whether git could find a repository, as far as names tell. Each trial of a search asks."""
    place = Path(os.path.realpath(folder))
    # The folder of a repository without a work tree has no .git.
    return any(os.path.lexists(one / name) for one in (place, *place.parents) for name in (".git", "HEAD"))


class _Git:
    """Git in a folder.

    :param limit_s: seconds for all commands together
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        self.folder = folder
        self.limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        # Variables such as GIT_DIR name another repository.
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.environment = {**own, **_ENVIRONMENT}

    def run(self, *arguments: str, fails: bool = False) -> bytes:
        """Return the output of a command.

        :param fails: an exit code that is not 0 is none of its failures
        :raises _UnknownError: it fails
        """
        try:
            done = subprocess.run(
                (*_GIT, *arguments),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=max(0.01, self.deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _UnknownError(f"git did not answer within {self.limit_s:g} s") from None
        except OSError as error:
            is_absent = error.filename == "git"
            text = "git is not installed" if is_absent else f"git cannot be started: {error.strerror}"
            raise _UnknownError(text) from None
        if done.returncode != 0 and not fails:
            raise _UnknownError(_reason(done.stderr.decode("utf-8", "replace")))
        return done.stdout

    def without_own_filters(self) -> list[str]:
        """Return options that switch off the filters that the repository itself names, but not those of the user."""
        lines = self.run(*_SETTINGS, fails=True).decode("utf-8", "replace").splitlines()
        names = sorted({found[1] for line in lines if (found := _FILTER.fullmatch(line))})
        settings = [f"{name}.{one}" for name in names for one in ("clean=", "process=", "required=false")]
        return [part for setting in settings for part in ("-c", setting)]


def _reason(message: str) -> str:
    if "not a git repository" in message:
        return _NO_REPOSITORY
    if "dubious ownership" in message:
        return "the repository belongs to another user, and safe.directory does not name it"
    return f"git failed: {message.strip()[:200]}"
