"""Files of a trial from a server: outputs, and checkpoints as archives."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.operations import Operations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, ServerError
from airflow_provider_dtrain.terminal.output import UsageError, hint, is_table, note, plain, show, size

_PIECE_BYTES = 1 << 20


def outputs(args: Namespace) -> None:
    """List the files that rank 0 of a trial wrote, as of their last copy on the server."""
    session = session_of(args)
    found = _outputs(session, args.trial_id)
    rows = found["rows"] or _fetched_list(session, args.trial_id)
    rows = [
        {
            "path": one["path"],
            "size": size(one["size_bytes"]) if is_table(args) else one["size_bytes"],
            "modified": datetime.fromisoformat(one["at"]),
        }
        for one in rows
    ]
    show(args, rows, empty=f"Trial {args.trial_id} has written no files.")
    if found["truncated"]:
        note("There are more files than this list has, or files beyond the limits stayed on the host.")
    if rows:
        hint(f"airflow dtrain trials download {args.trial_id}")


def _outputs(session: Session, trial_id: int) -> dict[str, Any]:
    found = session.get(f"/trials/{trial_id}/outputs")
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise ServerError("The server sent no list of outputs.")
    return found


def _fetched_list(session: Session, trial_id: int) -> list[dict[str, Any]]:
    """Return the outputs on the host, which the server has no copy of."""
    body = {"trial_id": trial_id, "list_only": True}
    found = Operations(session, Patience(session, note)).run("outputs", body)
    for words in found["words"]:
        note(words)
    return [{**one, "at": datetime.fromtimestamp(one["at"], UTC).isoformat()} for one in found["files"]]


def download(args: Namespace) -> None:
    """Write the files that rank 0 of a trial wrote, or some of them, to a folder."""
    session = session_of(args)
    target = Path(args.to or f"trial-{args.trial_id}")
    files = {str(one["path"]): int(one["size_bytes"]) for one in _outputs(session, args.trial_id)["rows"]}
    if not files:
        return _fetch_outputs(session, args, target)
    chosen = _chosen(files, args.path, args.trial_id)
    for path in chosen:
        # A server must not choose where this program writes.
        if Path(path).is_absolute() or ".." in Path(path).parts or not path:
            raise ServerError(f"The server has an output whose path leaves its folder: {path[:200]!r}.")
        if os.path.lexists(target / path):
            raise ConflictError(f"{target / path} exists. Name another folder with --to.")
    for path in chosen:
        save(session, f"/trials/{args.trial_id}/outputs/download", target / path, path=path)
    note(f"{len(chosen)} file(s), {size(sum(files[path] for path in chosen))}, are in {target}.")
    return None


def _fetch_outputs(session: Session, args: Namespace, target: Path) -> None:
    """Write outputs that the server has no copy of, from the host."""
    target.mkdir(parents=True, exist_ok=True)
    body = {"trial_id": args.trial_id, "paths": args.path}
    with _fetched(session, "outputs", body, target.parent) as (name, result), _unpacked(name, target.parent) as folder:
        found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in found:
            if os.path.lexists(target / path.relative_to(folder)):
                taken = target / path.relative_to(folder)
                raise ConflictError(f"{taken} exists. Name another folder with --to.")
        for path in found:
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(path, place)
        total = sum(path.stat().st_size for path in found)
    for words in result["words"]:
        note(words)
    note(f"{len(found)} file(s), {size(total)}, are in {target}.")


@contextlib.contextmanager
def _fetched(session: Session, kind: str, body: dict[str, Any], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of a temporary file with the content of an operation, and the result of the operation."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".download-") as file:

        def put(data: bytes) -> None:
            file.write(data)

        result = Operations(session, Patience(session, note)).run(kind, body, put)
        file.flush()
        yield file.name, result


@contextlib.contextmanager
def _unpacked(name: str, parent: Path) -> Iterator[Path]:
    """Yield a temporary folder with the files of an archive.

    :raises ServerError: the archive is damaged
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix=".download-") as folder:
        try:
            with tarfile.open(name, mode="r:") as tar:
                tar.extractall(folder, filter="data")
        except tarfile.TarError as error:
            raise ServerError(f"The archive is damaged: {error}") from error
        yield Path(folder)


def _chosen(files: dict[str, int], wanted: Sequence[str], trial_id: int) -> list[str]:
    """Return the outputs that are named by their path or by a folder above. Without names: all."""
    chosen: set[str] = set()
    for name in wanted or [""]:
        fitting = {path for path in files if not name or path == name or path.startswith(f"{name.rstrip('/')}/")}
        if not fitting:
            raise UsageError(
                f"There is no output '{plain(name)}'. To list them, run: airflow dtrain trials outputs {trial_id}"
            )
        chosen |= fitting
    return sorted(chosen)


def save(session: Session, route: str, target: Path, /, **parameters: object) -> None:
    """Write the body of an answer to a file. It appears under its name once it is complete.

    :raises ConflictError: the file exists
    :raises ServerError: the connection was cut
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _received(session, route, target.parent, **parameters) as name:
        _link(name, target)


def _link(name: str | Path, target: Path) -> None:
    try:
        # Unlike a rename, a link never replaces a file that appeared in the meantime.
        os.link(name, target)
    except FileExistsError:
        raise ConflictError(f"{target} exists. Name another place.") from None


@contextlib.contextmanager
def _received(session: Session, route: str, folder: Path, /, **parameters: object) -> Iterator[str]:
    """Yield the name of a temporary file with the body of an answer."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".download-") as file:
        with session.stream(route, **parameters) as response:
            try:
                shutil.copyfileobj(response, file, _PIECE_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise ServerError(f"The connection was cut before the end of the download: {error}") from error
            if response.length:
                raise ServerError(f"The connection was cut: {response.length} bytes of the download are missing.")
        file.flush()
        yield file.name


def save_checkpoint(session: Session, trial_id: int, checkpoint_id: int, target: Path) -> Path:
    """Write a checkpoint to a folder, which must not exist, and return the folder.

    :raises ConflictError: the folder exists, or the server cannot send the checkpoint; says where it is
    """
    if os.path.lexists(target):
        raise ConflictError(f"{target} exists. Name another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    route = f"/trials/{trial_id}/checkpoints/{checkpoint_id}/download"
    try:
        with _received(session, route, target.parent) as name:
            return _unpack_checkpoint(name, target)
    except ConflictError as error:
        note(f"{error} It is requested from its host.")
    body = {"trial_id": trial_id, "checkpoint_id": checkpoint_id}
    with _fetched(session, "checkpoint", body, target.parent) as (name, _):
        return _unpack_checkpoint(name, target)


def _unpack_checkpoint(name: str, target: Path) -> Path:
    with _unpacked(name, target.parent) as folder:
        # The archive has one folder, with the name of trial and step.
        found = list(folder.iterdir())
        (found[0] if len(found) == 1 else folder).replace(target)
        if len(found) != 1:
            folder.mkdir()
    return target


def checkpoint(args: Namespace) -> None:
    """Write a checkpoint of a trial to a folder."""
    session = session_of(args)
    rows = session.get(f"/trials/{args.trial_id}/checkpoints")["rows"]
    usable = [one for one in rows if one["removed_at"] is None and one["refused"] is None]
    wanted = args.checkpoint
    if wanted == "best":
        usable = [one for one in usable if one["is_best"]]
    elif wanted != "latest":
        usable = [one for one in usable if str(one["checkpoint_id"]) == wanted]
    if not usable:
        raise NotFoundError(
            f"Trial {args.trial_id} has no checkpoint {wanted!r}. See: airflow dtrain trials checkpoints "
            f"{args.trial_id}"
        )
    one = usable[-1]
    target = Path(args.to or f"trial-{args.trial_id}-step-{one['step']}")
    save_checkpoint(session, args.trial_id, int(one["checkpoint_id"]), target)
    note(f"Checkpoint {one['checkpoint_id']} of step {one['step']} is in {target}.")
