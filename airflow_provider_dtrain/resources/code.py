"""Code of trials and experiments: its files, the text of one, and the changes between two."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_dtrain.resources.provenance import DagBundle, GitState


class FileKind(StrEnum):
    """Kind of a file of packed code."""

    TEXT = "text"
    BINARY = "binary"
    LINK = "link"


class FileChange(StrEnum):
    """Change of a file from one archive to another one."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """A file of packed code."""

    path: str
    #: None: the store no longer has the code.
    kind: FileKind | None
    #: None: it is a link, or the store no longer has the code.
    size_bytes: int | None
    #: Of a link.
    target: str | None
    #: Its owner may execute it.
    is_program: bool


@dataclass(frozen=True, kw_only=True)
class CodeParent:
    """The experiment from which another one was started."""

    experiment_id: int
    name: str
    #: The trial that is run again; None: the experiment is a fork.
    trial_id: int | None


@dataclass(frozen=True, kw_only=True)
class CodeListing:
    """Files of the code of a trial. For an experiment stands its best trial, else its latest one."""

    experiment_id: int
    trial_id: int
    #: SHA-256 of the packed code; None: no code was sent.
    digest: str | None
    #: Bytes of the archive; None: the store has none.
    packed_bytes: int | None
    #: By path. Empty: none is known, or the user may not read them.
    files: list[CodeFile]
    #: Files that are not listed.
    more: int
    #: Texts of files can be read.
    is_readable: bool
    #: Why files or their texts are missing; empty: they are not.
    reason: str
    git: GitState
    #: None: it was not submitted by a task that knows its bundle.
    bundle: DagBundle | None
    #: None: it was started from no experiment that the user may read.
    parent: CodeParent | None


@dataclass(frozen=True, kw_only=True)
class CodeText:
    """Text of a file of the code of a trial."""

    trial_id: int
    path: str
    #: At most 512 KiB of it. Bytes that are not UTF-8 are replaced.
    text: str
    size_bytes: int
    #: The text is that of the whole file.
    is_whole: bool


@dataclass(frozen=True, kw_only=True)
class ChangedFile:
    """A file that differs between two archives."""

    path: str
    change: FileChange
    #: Lines that only the second file has, and lines that only the first one has. None: not counted.
    added: int | None
    removed: int | None
    #: Unified diff with 3 lines of context, without the two lines that name the files.
    lines: list[str]
    #: Why there are no lines; empty: they are all here.
    note: str


@dataclass(frozen=True, kw_only=True)
class CodeChanges:
    """Changes from the code of one trial to that of another one."""

    #: The two trials.
    trials: list[int]
    files: list[ChangedFile]
    #: Changed files that are not listed.
    more: int
    #: Files that are equal.
    same: int
    #: Why the code cannot be compared; empty: it was compared.
    reason: str
