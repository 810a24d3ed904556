"""Code of trials and experiments: its files, the text of one, and the changes between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.code_contents import packed_files
from airflow_provider_dtrain.core.line_changes import LineComparison
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.resources.code import (
    ChangedFile,
    CodeChanges,
    CodeFile,
    CodeListing,
    CodeParent,
    CodeText,
    FileChange,
    FileKind,
)
from airflow_provider_dtrain.resources.provenance import DagBundle, GitState
from airflow_provider_dtrain.store.queries.rights import readable_experiment, readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.code_contents import PackedFile
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import TrialView
    from airflow_provider_dtrain.store.store import Store

#: Most bytes of a text that is shown, and of one whose lines are compared.
TEXT_BYTES: Final = 512 << 10
COMPARED_BYTES: Final = 256 << 10
#: Most changed files of an answer, and lines of their differences.
CHANGED_MOST: Final = 500
LINES_MOST: Final = 10_000

_NO_CODE: Final = "no code was sent: its program is in an image or on the hosts"
_REMOVED: Final = "the store no longer has the code, because airflow dtrain gc has removed it"
_TOO_MANY: Final = "it has too many files"


def code_listing(store: Store, rights: Rights, trial_id: int) -> CodeListing:
    """Return the files of the code of a trial. Their names are for users who may read the code of its DAG.

    :raises NotFoundError: there is no such trial that the user may read
    :raises PayloadError: the stored code cannot be read
    """
    trial = readable_trial(store, rights, trial_id)
    source = store.provenance.source(trial_id)
    digest = source.get("code")
    files, more, packed, reason = _files(store, rights, trial, digest)
    return CodeListing(
        experiment_id=trial.experiment_id,
        trial_id=trial_id,
        digest=digest,
        packed_bytes=packed,
        files=files,
        more=more,
        is_readable=packed is not None,
        reason=reason,
        git=GitState(**source["git"]) if source.get("git") else GitState(problem="it was not recorded"),
        bundle=DagBundle(**source["bundle"]) if source.get("bundle") else None,
        parent=_parent(store, rights, trial),
    )


def code_text(store: Store, rights: Rights, trial_id: int, path: str) -> CodeText:
    """Return the text of a file of the code of a trial.

    :raises NotFoundError: there is no such trial that the user may read, or its code has no such file
    :raises ApiError: the user may not read the code
    :raises UserError: the file is not text
    """
    trial = readable_trial(store, rights, trial_id)
    rights.require_code(trial.key.dag_id)
    archive = _archive(store, store.provenance.source(trial_id).get("code"))
    if archive is None:
        raise NotFoundError(f"The store has no code of trial {trial_id}.")
    found = packed_files(archive, {path}, TEXT_BYTES)[0].get(path)
    if found is None or found.content is None:
        raise NotFoundError(f"The code of trial {trial_id} has no file of this path.")
    if not found.is_text:
        raise UserError("The file is not text, so it is not shown.")
    return CodeText(
        trial_id=trial_id,
        path=path,
        text=found.content.decode("utf-8", "replace"),
        size_bytes=found.size_bytes,
        is_whole=len(found.content) == found.size_bytes,
    )


def code_changes(store: Store, rights: Rights, trial_ids: Sequence[int]) -> CodeChanges:
    """Return the changes from the code of one trial to that of another one.

    :param trial_ids: the two trials
    :raises NotFoundError: there is none with one of the ids that the user may read
    :raises ApiError: the user may not read the code of one
    """
    codes = []
    for trial_id in trial_ids:
        trial = readable_trial(store, rights, trial_id)
        rights.require_code(trial.key.dag_id)
        codes.append(store.provenance.source(trial_id).get("code"))
    digests = [None if code is None else store.provenance.manifests([code]).get(code) for code in codes]
    if codes[0] is not None and codes[0] == codes[1]:
        # The same digest has the same files, whether the store still has them or not.
        return CodeChanges(trials=list(trial_ids), files=[], more=0, same=len(digests[0] or ()), reason="")
    archives = [_archive(store, code) for code in codes]
    for trial_id, code, archive, listed in zip(trial_ids, codes, archives, digests, strict=True):
        reason = _NO_CODE if code is None else _REMOVED if archive is None else _TOO_MANY if listed is None else ""
        if reason:
            return CodeChanges(
                trials=list(trial_ids), files=[], more=0, same=0, reason=f"Of trial {trial_id} {reason}."
            )
    return _compared(trial_ids, archives, digests)


def _compared(
    trial_ids: Sequence[int], archives: Sequence[bytes | None], digests: Sequence[Mapping[str, str] | None]
) -> CodeChanges:
    """Return the changes between two archives.

    :param digests: path -> digest of the files of each
    """
    before, after = digests[0] or {}, digests[1] or {}
    paths = sorted({*before, *after})
    changed = [path for path in paths if before.get(path) != after.get(path)]
    shown = changed[:CHANGED_MOST]
    old, new = (_Side(archive or b"", shown) for archive in archives)
    comparison, left, files = LineComparison(), LINES_MOST, []
    for path in shown:
        one = _changed(comparison, path, old, new, left)
        left -= len(one.lines)
        files.append(one)
    more, same = len(changed) - len(shown), len(paths) - len(changed)
    return CodeChanges(trials=list(trial_ids), files=files, more=more, same=same, reason="")


class _Side:
    """Changed files of one of two archives."""

    def __init__(self, archive: bytes, paths: Sequence[str]) -> None:
        self.files, _ = packed_files(archive, set(paths), COMPARED_BYTES)

    def text(self, path: str) -> str | None:
        """Return the text of a file, "" for one that does not exist, None for one whose lines are not compared."""
        one = self.files.get(path)
        if one is None:
            return ""
        if one.content is None or not one.is_text or one.size_bytes > COMPARED_BYTES:
            return None
        return one.content.decode("utf-8", "replace")

    def note(self, path: str) -> str:
        """Return why the lines of a file are not compared, "" if they are."""
        one = self.files.get(path)
        if one is None:
            return ""
        if one.target is not None:
            return f"a link to {one.target}"
        if not one.is_text:
            return f"no text, {byte_size(one.size_bytes)}"
        if one.size_bytes > COMPARED_BYTES:
            return f"{byte_size(one.size_bytes)}, of at most {byte_size(COMPARED_BYTES)} that are compared"
        return ""


def _changed(comparison: LineComparison, path: str, old: _Side, new: _Side, left: int) -> ChangedFile:
    """Return the change of one file.

    :param left: lines that the answer may still have
    """
    before, after = old.files.get(path), new.files.get(path)
    change = FileChange.ADDED if before is None else FileChange.REMOVED if after is None else FileChange.CHANGED
    notes = [note for note in dict.fromkeys((old.note(path), new.note(path))) if note]
    texts = old.text(path), new.text(path)
    if before is not None and after is not None and before.is_program != after.is_program:
        notes.append("it can now be executed" if after.is_program else "it can no longer be executed")
    if texts[0] is None or texts[1] is None:
        return ChangedFile(path=path, change=change, added=None, removed=None, lines=[], note=" -> ".join(notes))
    found = comparison.changes(texts[0], texts[1])
    if found is None:
        notes.append("too many lines differ to compare them")
        return ChangedFile(path=path, change=change, added=None, removed=None, lines=[], note=", ".join(notes))
    is_shown = len(found.lines) <= left
    if not is_shown:
        notes.append(f"the differences have more than {LINES_MOST:,} lines in all")
    return ChangedFile(
        path=path,
        change=change,
        added=found.added,
        removed=found.removed,
        lines=found.lines if is_shown else [],
        note=", ".join(notes),
    )


def _archive(store: Store, digest: str | None) -> bytes | None:
    return store.payloads.get(digest) if digest is not None and store.payloads.has(digest) else None


def _files(
    store: Store, rights: Rights, trial: TrialView, digest: str | None
) -> tuple[list[CodeFile], int, int | None, str]:
    """Return files, the number of those that are not listed, bytes of the archive, and why something is missing."""
    if digest is None:
        return [], 0, None, f"{_NO_CODE[0].upper()}{_NO_CODE[1:]}."
    if not rights.may_read_code(trial.key.dag_id):
        return [], 0, None, "You may not read the code of its DAG."
    archive = _archive(store, digest)
    if archive is None:
        listed = store.provenance.manifests([digest]).get(digest)
        return _named(listed or {}), 0, None, f"{_REMOVED[0].upper()}{_REMOVED[1:]}."
    files, more = packed_files(archive)
    return [_file(files[path]) for path in sorted(files)], more, len(archive), ""


def _file(one: PackedFile) -> CodeFile:
    if one.target is not None:
        return CodeFile(path=one.path, kind=FileKind.LINK, size_bytes=None, target=one.target, is_program=False)
    kind = FileKind.TEXT if one.is_text else FileKind.BINARY
    return CodeFile(path=one.path, kind=kind, size_bytes=one.size_bytes, target=None, is_program=one.is_program)


def _named(listed: Mapping[str, str]) -> list[CodeFile]:
    """Return the files of code that was removed, of which only names and digests are known."""
    return [
        CodeFile(
            path=path,
            kind=None,
            size_bytes=None,
            target=digest.removeprefix("-> ") if digest.startswith("-> ") else None,
            is_program=digest.endswith("+x"),
        )
        for path, digest in sorted(listed.items())
    ]


def _parent(store: Store, rights: Rights, trial: TrialView) -> CodeParent | None:
    """Return the experiment from which that of a trial was started, None if the user may not read it."""
    submission = store.submissions.find(trial.key.dag_id, trial.key.run_id)
    if submission is None:
        return None
    try:
        if submission.reproduces is not None:
            source = readable_trial(store, rights, submission.reproduces)
            return CodeParent(experiment_id=source.experiment_id, name=source.experiment, trial_id=source.trial_id)
        if submission.fork_of is not None:
            view = readable_experiment(store, rights, submission.fork_of).view
            return CodeParent(experiment_id=view.experiment_id, name=view.name, trial_id=None)
    except NotFoundError:
        pass
    return None
