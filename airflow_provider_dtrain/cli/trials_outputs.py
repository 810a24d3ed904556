"""``airflow dtrain trials outputs`` and ``download``: the files that a plain script wrote."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from airflow_provider_dtrain.terminal.output import hint, is_table, note, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.engine.copies.output_generations import Generation

_COPY_BYTES = 1 << 20
#: Name of the TensorBoard files among the paths of a download.
TENSORBOARD = "tensorboard"


@command
def outputs(args: Namespace) -> None:
    """List the files that rank 0 of a trial wrote, as of their last copy."""
    from airflow_provider_dtrain.engine.operations.outputs import outputs_of
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    with outputs_of(DtrainHook(), args.trial_id) as found:
        rows = [
            {
                "path": path,
                "size": byte_size(file.size_bytes) if is_table(args) else file.size_bytes,
                "modified": datetime.fromtimestamp(file.modified_at, UTC),
            }
            for path, file in sorted(found.manifest.files.items())
        ]
        show(args, rows, empty=f"Trial {args.trial_id} has written no files.")
        _say(found)
    if rows:
        hint(f"airflow dtrain trials download {args.trial_id}")


@command
def download(args: Namespace) -> None:
    """Write the outputs and TensorBoard files of a trial, or some of them, to a folder of this machine."""
    target = Path(args.to or f"trial-{args.trial_id}")
    wanted = [path for path in args.path if path != TENSORBOARD]
    boards = _tensorboard_files(args.trial_id) if len(wanted) < len(args.path) or not args.path else []
    if wanted or not args.path:
        try:
            _download_outputs(args.trial_id, wanted, target)
        except NotFoundError:
            if not boards or wanted:
                raise
    elif not boards:
        raise NotFoundError(
            f"Trial {args.trial_id} has no TensorBoard files on this machine. They need tensorboard: true in its "
            "configuration, and a report of a metric."
        )
    refuse_taken(target, [f"{TENSORBOARD}/{path.name}" for path in boards])
    for path in boards:
        write_copy(path, target / TENSORBOARD / path.name)
    if boards:
        hint(f"tensorboard --logdir {target / TENSORBOARD}")


def _download_outputs(trial_id: int, wanted: Sequence[str], target: Path) -> None:
    from airflow_provider_dtrain.engine.operations.outputs import chosen_paths, outputs_of
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    with outputs_of(DtrainHook(), trial_id) as found:
        chosen = chosen_paths(found, wanted)
        refuse_taken(target, chosen)
        for path in chosen:
            write_copy(found.path(path), target / path)
        _say(found)
    total = sum(found.manifest.files[path].size_bytes for path in chosen)
    note(f"{len(chosen)} file(s), {byte_size(total)}, are in {target}.")


def refuse_taken(target: Path, paths: Sequence[str]) -> None:
    """Raise when a file of the target folder exists already.

    :raises ConflictError: names the first one
    """
    taken = [path for path in paths if os.path.lexists(target / path)]
    if taken:
        raise ConflictError(
            f"{target / taken[0]} exists{f', and {len(taken) - 1} more' if len(taken) > 1 else ''}. Name another "
            "folder with --to."
        )


def _tensorboard_files(trial_id: int) -> list[Path]:
    from airflow_provider_dtrain.engine.copies.tensorboard import tensorboard_folder
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    trial = hook.store.trials.get(trial_id)
    folder = tensorboard_folder(hook.settings.checkpoint_dir, trial.experiment_id, trial_id)
    return sorted(folder.glob("events.out.tfevents.*"))


def _say(found: Generation) -> None:
    from airflow_provider_dtrain.engine.operations.outputs import copy_notes

    for words in copy_notes(found):
        note(words)


def write_copy(source: Path, target: Path) -> None:
    """Copy a file. It appears under its name once it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".download-", delete=False) as file:
        try:
            with open(source, "rb") as whole:
                shutil.copyfileobj(whole, file, _COPY_BYTES)
            # Unlike a rename, a link never replaces a file that appeared in the meantime.
            os.link(file.name, target)
        except FileExistsError:
            raise ConflictError(f"{target} exists. Name another folder with --to.") from None
        finally:
            os.unlink(file.name)
