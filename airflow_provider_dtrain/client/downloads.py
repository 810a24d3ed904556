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
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, ServerError
from airflow_provider_dtrain.terminal.output import UsageError, hint, is_table, note, plain, show, size

_PIECE_BYTES = 1 << 20


def outputs(args: Namespace) -> None:
    """List the files that rank 0 of a trial wrote, as of their last copy on the server."""
    found = _outputs(session_of(args), args.trial_id)
    rows = [
        {
            "path": one["path"],
            "size": size(one["size_bytes"]) if is_table(args) else one["size_bytes"],
            "modified": datetime.fromisoformat(one["at"]),
        }
        for one in found["rows"]
    ]
    show(args, rows, empty=f"The server has no copy of outputs of trial {args.trial_id}.")
    if found["truncated"]:
        note("There are more files than this list has, or files beyond the limits stayed on the host.")
    if rows:
        hint(f"airflow dtrain trials download {args.trial_id}")


def _outputs(session: Session, trial_id: int) -> dict[str, Any]:
    found = session.get(f"/trials/{trial_id}/outputs")
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise ServerError("The server sent no list of outputs.")
    return found


def download(args: Namespace) -> None:
    """Write the files that rank 0 of a trial wrote, or some of them, to a folder."""
    session = session_of(args)
    target = Path(args.to or f"trial-{args.trial_id}")
    files = {str(one["path"]): int(one["size_bytes"]) for one in _outputs(session, args.trial_id)["rows"]}
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


def _chosen(files: dict[str, int], wanted: Sequence[str], trial_id: int) -> list[str]:
    """Return the outputs that are named by their path or by a folder above. Without names: all."""
    if not files:
        raise NotFoundError(
            f"The server has no copy of outputs of trial {trial_id}. On the machine of Airflow: airflow dtrain "
            f"trials download {trial_id}"
        )
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
    with (
        _received(session, route, target.parent) as name,
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder,
    ):
        try:
            with tarfile.open(name, mode="r:") as tar:
                tar.extractall(folder, filter="data")
        except tarfile.TarError as error:
            raise ServerError(f"The archive of the checkpoint is damaged: {error}") from error
        # The archive has one folder, with the name of trial and step.
        found = list(Path(folder).iterdir())
        (found[0] if len(found) == 1 else Path(folder)).replace(target)
        if len(found) != 1:
            Path(folder).mkdir()
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
