"""Files of a trial from a server: outputs, and checkpoints as archives."""

from __future__ import annotations

import contextlib
import http.client
import os
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.client.answers import FetchedOutputs, Nothing, ScriptOutput, ScriptOutputs
from airflow_provider_dtrain.client.decoder import Record
from airflow_provider_dtrain.client.failures import AWAY
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.operations import ServerOperations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.paths_below import path_below
from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, ServerError, UsageError, UserError
from airflow_provider_dtrain.hosts.channel.archive_reader import unpack_plain
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint
from airflow_provider_dtrain.terminal.output import hint, is_table, note, show

_PIECE_BYTES = 1 << 20
#: Most files of an archive, and most folders, as the server sends them.
FILES_MOST = 10_000


def outputs(args: Namespace) -> None:
    """List the files that rank 0 of a trial wrote, as of their last copy on the server."""
    session = session_of(args)
    found = _outputs(session, args.trial_id)
    rows = [
        {
            "path": one.path,
            "size": byte_size(one.size_bytes) if is_table(args) else one.size_bytes,
            "modified": one.at,
        }
        for one in found.rows or _fetched_list(session, args.trial_id)
    ]
    show(args, rows, empty=f"Trial {args.trial_id} has written no files.")
    if found.truncated:
        note("There are more files than this list has, or files beyond the limits stayed on the host.")
    if rows:
        hint(f"dtrain trials download {args.trial_id}")


def _outputs(session: Session, trial_id: int) -> ScriptOutputs:
    return session.get(f"/trials/{trial_id}/outputs").record(ScriptOutputs)


def _fetched_list(session: Session, trial_id: int) -> list[ScriptOutput]:
    """Return the outputs on the host, which the server has no copy of."""
    body = {"trial_id": trial_id, "list_only": True}
    found = ServerOperations(session, Patience(session, note)).run(FetchedOutputs, "outputs", body)
    for words in found.words:
        note(words)
    return [
        ScriptOutput(path=one.path, size_bytes=one.size_bytes, at=datetime.fromtimestamp(one.at, UTC))
        for one in found.files
    ]


def download(args: Namespace) -> None:
    """Write the files that rank 0 of a trial wrote, or some of them, to a folder."""
    session = session_of(args)
    target = Path(args.to or f"trial-{args.trial_id}")
    files = {one.path: one.size_bytes for one in _outputs(session, args.trial_id).rows}
    if not files:
        return _fetch_outputs(session, args, target)
    chosen = _chosen(files, args.path, args.trial_id)
    places = places_below(target, chosen)
    for path in chosen:
        save(session, f"/trials/{args.trial_id}/outputs/download", places[path], path=path)
    note(f"{len(chosen)} file(s), {byte_size(sum(files[path] for path in chosen))}, are in {target}.")
    return None


def places_below(target: Path, paths: Sequence[str]) -> dict[str, Path]:
    """Return where the files of a server are written: below a folder, never in place of another file.

    :raises ServerError: a path leads elsewhere
    :raises ConflictError: a file exists
    """
    places: dict[str, Path] = {}
    for path in paths:
        try:
            places[path] = path_below(target, path)
        except ValueError as error:
            words = f"The server has a file {path[:200]!r} that cannot be written below {target}: {error}."
            raise ServerError(words) from None
        if os.path.lexists(places[path]):
            raise ConflictError(f"{places[path]} exists. Name another folder with --to.")
    return places


def _fetch_outputs(session: Session, args: Namespace, target: Path) -> None:
    """Write outputs that the server has no copy of, from the host."""
    body = {"trial_id": args.trial_id, "paths": args.path}
    with (
        _fetched(FetchedOutputs, session, "outputs", body, target.parent) as (archive, result),
        _unpacked(archive, target.parent) as folder,
    ):
        found = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        places = places_below(target, found)
        total = sum((folder / path).stat().st_size for path in found)
        for path in found:
            _link(folder / path, places[path])
    for words in result.words:
        note(words)
    note(f"{len(found)} file(s), {byte_size(total)}, are in {target}.")


@contextlib.contextmanager
def _fetched(
    kind: type[Record], session: Session, name: str, body: dict[str, Any], folder: Path
) -> Iterator[tuple[Path, Record]]:
    """Yield a temporary file with the content of an operation, and the result of the operation.

    :param folder: of the file
    """
    with _temporary(folder) as path, path.open("wb") as file:
        result = ServerOperations(session, Patience(session, note)).run(kind, name, body, file.write)
        file.flush()
        yield path, result


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Yield a new file, and remove it.

    :raises UserError: this or another file cannot be written, while the block runs
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".download-") as file:
            yield Path(file.name)
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written: {error.strerror or error}.") from None


@contextlib.contextmanager
def _unpacked(archive: Path, parent: Path) -> Iterator[Path]:
    """Yield a temporary folder with the files of an archive: plain files and folders, no links.

    :raises ServerError: the archive has something else, or is damaged
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix=".download-") as name, archive.open("rb") as file:
        folder = Path(name)
        try:
            unpack_plain(file, folder, limit_bytes=archive.stat().st_size, limit_files=FILES_MOST)
        except tarfile.TarError as error:
            raise ServerError(f"The archive of the server cannot be unpacked: {as_sentence(error)}") from None
        yield folder


def _chosen(files: dict[str, int], wanted: Sequence[str], trial_id: int) -> list[str]:
    """Return the outputs that are named by their path or by a folder above. Without names: all."""
    chosen: set[str] = set()
    for name in wanted or [""]:
        fitting = {path for path in files if not name or path == name or path.startswith(f"{name.rstrip('/')}/")}
        if not fitting:
            raise UsageError(f"There is no output '{name}'. To list them, run: dtrain trials outputs {trial_id}")
        chosen |= fitting
    return sorted(chosen)


def save(session: Session, route: str, target: Path, /, **parameters: object) -> None:
    """Write the body of an answer to a file. It appears under its name once it is complete.

    :raises ConflictError: the file exists
    :raises ServerError: the connection was cut
    """
    with _received(session, route, target.parent, **parameters) as path:
        _link(path, target)


def _link(path: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Unlike a rename, a link never replaces a file that appeared in the meantime.
        os.link(path, target)
    except FileExistsError as error:
        raise ConflictError(f"{error.filename2 or error.filename} exists. Name another place.") from None


@contextlib.contextmanager
def _received(session: Session, route: str, folder: Path, /, **parameters: object) -> Iterator[Path]:
    with _temporary(folder) as path:
        with path.open("wb") as file, session.stream(route, **parameters) as response:
            while data := _read(response):
                file.write(data)
        yield path


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes of a download, none at its end.

    :raises ServerError: the connection was cut
    """
    try:
        data = response.read(_PIECE_BYTES)
    except AWAY as error:
        raise ServerError(f"The connection was cut before the end of the download: {error}") from error
    if not data and response.length:
        raise ServerError(f"The connection was cut: {response.length} bytes of the download are missing.")
    return data


def save_checkpoint(session: Session, trial_id: int, checkpoint_id: int, target: Path) -> Path:
    """Write a checkpoint to a folder, which must not exist, and return the folder.

    :raises ConflictError: the folder exists, or the server cannot send the checkpoint; says where it is
    """
    if os.path.lexists(target):
        raise ConflictError(f"{target} exists. Name another folder.")
    route = f"/trials/{trial_id}/checkpoints/{checkpoint_id}/download"
    try:
        with _received(session, route, target.parent) as archive:
            return _unpack_checkpoint(archive, target)
    except ConflictError as error:
        note(f"{as_sentence(error)} It is requested from its host.")
    body = {"trial_id": trial_id, "checkpoint_id": checkpoint_id}
    with _fetched(Nothing, session, "checkpoint", body, target.parent) as (archive, _):
        return _unpack_checkpoint(archive, target)


def _unpack_checkpoint(archive: Path, target: Path) -> Path:
    with _unpacked(archive, target.parent) as folder:
        # The archive has one folder, with the name of trial and step.
        found = list(folder.iterdir())
        if len(found) != 1 or not found[0].is_dir():
            raise ServerError("The archive of the server is no checkpoint, which is one folder.")
        found[0].replace(target)
    return target


def usable_checkpoints(source: ServerSource, trial_id: int) -> list[StoredCheckpoint]:
    """Return the checkpoints of a trial that are there, oldest first."""
    found = source.checkpoints(trial_id).rows
    return [one for one in found if one.removed_at is None and one.refused is None]


def checkpoint(args: Namespace) -> None:
    """Write a checkpoint of a trial to a folder."""
    session = session_of(args)
    usable = usable_checkpoints(ServerSource(session), args.trial_id)
    wanted = args.checkpoint
    if wanted == "best":
        usable = [one for one in usable if one.is_best]
    elif wanted != "latest":
        usable = [one for one in usable if str(one.checkpoint_id) == wanted]
    if not usable:
        raise NotFoundError(
            f"Trial {args.trial_id} has no checkpoint {wanted!r}. See: dtrain trials checkpoints {args.trial_id}"
        )
    one = usable[-1]
    target = Path(args.to or f"trial-{args.trial_id}-step-{one.step}")
    save_checkpoint(session, args.trial_id, one.checkpoint_id, target)
    note(f"Checkpoint {one.checkpoint_id} of step {one.step} is in {target}.")
