"""``airflow dtrain trials outputs`` and ``download``: the files that a plain script wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import ConflictError, HostError, NotFoundError
from airflow_provider_dtrain.terminal.output import UsageError, hint, is_table, note, plain, show, size

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.engine.copies.output_generations import Generation
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView

_COPY_BYTES = 1 << 20
#: Name of the TensorBoard files among the paths of a download.
TENSORBOARD = "tensorboard"


@command
def outputs(args: Namespace) -> None:
    """List the files that rank 0 of a trial wrote, as of their last copy."""
    with _generation(args.trial_id) as found:
        rows = [
            {
                "path": path,
                "size": size(file.size_bytes) if is_table(args) else file.size_bytes,
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
    _refuse_taken(target, [f"{TENSORBOARD}/{path.name}" for path in boards])
    for path in boards:
        _write(path, target / TENSORBOARD / path.name)
    if boards:
        hint(f"tensorboard --logdir {target / TENSORBOARD}")


def _download_outputs(trial_id: int, wanted: Sequence[str], target: Path) -> None:
    with _generation(trial_id) as found:
        chosen = chosen_paths(found, wanted)
        _refuse_taken(target, chosen)
        for path in chosen:
            _write(found.path(path), target / path)
        _say(found)
    total = sum(found.manifest.files[path].size_bytes for path in chosen)
    note(f"{len(chosen)} file(s), {size(total)}, are in {target}.")


def _refuse_taken(target: Path, paths: Sequence[str]) -> None:
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
    """Return the TensorBoard files of a trial on this machine."""
    from airflow_provider_dtrain.engine.copies.tensorboard import tensorboard_folder
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    trial = hook.store.trials.get(trial_id)
    folder = tensorboard_folder(hook.settings.checkpoint_dir, trial.experiment_id, trial_id)
    return sorted(folder.glob("events.out.tfevents.*"))


def chosen_paths(found: Generation, wanted: Sequence[str]) -> list[str]:
    """Return the outputs that are named by their path or by a folder above. Without names: all.

    :raises UsageError: a name matches no output
    """
    if not wanted:
        return sorted(found.manifest.files)
    chosen: set[str] = set()
    for name in wanted:
        fitting = {path for path in found.manifest.files if path == name or path.startswith(f"{name.rstrip('/')}/")}
        if not fitting:
            raise UsageError(
                f"There is no output '{plain(name)}'. To list them, run: airflow dtrain trials outputs TRIAL"
            )
        chosen |= fitting
    return sorted(chosen)


@contextlib.contextmanager
def _generation(trial_id: int) -> Iterator[Generation]:
    """Yield the newest copy of a trial's outputs. Without a copy on this machine, fetch them from the host.

    :raises NotFoundError: there is none, or it cannot be fetched
    """
    from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
    from airflow_provider_dtrain.engine.copies.output_generations import OutputCopies
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    trial = hook.store.trials.get(trial_id)
    here = OutputCopies(trial_folder(hook.settings.checkpoint_dir, trial.experiment_id, trial_id)).newest()
    if here is not None:
        yield here
        return
    started = [one for one in hook.store.attempts.of_trial(trial_id) if one.run is not None and one.plan]
    if not started:
        raise NotFoundError(f"Trial {trial_id} has no outputs: its ranks have not started, or it ended long ago.")
    with tempfile.TemporaryDirectory(prefix="dtrain-outputs-") as folder:
        yield _fetched(hook, started[-1], Path(folder))


def _fetched(hook: DtrainHook, view: AttemptView, folder: Path) -> Generation:
    from airflow_provider_dtrain.engine.copies.output_generations import BrokenOutputsError, Manifest, OutputCopies
    from airflow_provider_dtrain.engine.copies.outputs import chief_of

    assert view.run is not None
    manifest = Manifest(
        run=view.run, attempt=view.number, host=chief_of(view), at=time.time(), is_final=view.ended_at is not None
    )
    try:
        link = hook.link(hook.store.hosts.get(manifest.host))
        return OutputCopies(folder).take(link, manifest, limit_bytes=hook.settings.checkpoint_copy_limit_bytes)
    except (HostError, OSError, tarfile.TarError, BrokenOutputsError) as error:
        raise NotFoundError(
            f"Trial {view.trial_id} has no copy of its outputs on this machine, and they cannot be fetched: {error}"
        ) from error


def _say(found: Generation) -> None:
    manifest = found.manifest
    at = datetime.fromtimestamp(manifest.at, UTC)
    state = "at its end" if manifest.is_final else "while it ran; newer ones may follow"
    note(f"Attempt {manifest.attempt}, copied from host '{manifest.host}' at {at:%Y-%m-%d %H:%M:%S} UTC, {state}.")
    if manifest.unsettled:
        note(f"{len(manifest.unsettled)} file(s) were being written at that time: their copies are older, or missing.")
    if manifest.left_out_files:
        note(
            f"{manifest.left_out_files} file(s), {size(manifest.left_out_bytes)}, were beyond the limits and stay on "
            f"the host, e.g. {manifest.left_out[0] if manifest.left_out else '?'}."
        )


def _write(source: Path, target: Path) -> None:
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
