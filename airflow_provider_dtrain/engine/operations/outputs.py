"""The files that a plain script wrote: the newest copy here, or one that is fetched from the host. Blocks."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.engine.copies.mirror import NOT_COPIED
from airflow_provider_dtrain.engine.copies.output_generations import Generation, Manifest, OutputCopies
from airflow_provider_dtrain.engine.copies.outputs import chief_of
from airflow_provider_dtrain.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView


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
            raise UsageError(f"There is no output '{name}'. To list them, run: airflow dtrain trials outputs TRIAL")
        chosen |= fitting
    return sorted(chosen)


@contextlib.contextmanager
def outputs_of(hook: DtrainHook, trial_id: int) -> Iterator[Generation]:
    """Yield the newest copy of a trial's outputs. Without a copy on this machine, fetch them from the host.

    :raises NotFoundError: there is none, or it cannot be fetched
    """
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
    assert view.run is not None
    manifest = Manifest(
        run=view.run, attempt=view.number, host=chief_of(view), at=time.time(), is_final=view.ended_at is not None
    )
    try:
        link = hook.link(hook.store.hosts.get(manifest.host))
        return OutputCopies(folder).take(link, manifest, limit_bytes=hook.settings.checkpoint_copy_limit_bytes)
    except NOT_COPIED as error:
        raise NotFoundError(
            f"Trial {view.trial_id} has no copy of its outputs on this machine, and they cannot be fetched: {error}"
        ) from error


def copy_notes(found: Generation) -> list[str]:
    """Return the origin of a copy, and what it lacks, in sentences."""
    manifest = found.manifest
    at = datetime.fromtimestamp(manifest.at, UTC)
    state = "at its end" if manifest.is_final else "while it ran; newer ones may follow"
    parts = [f"Attempt {manifest.attempt}, copied from host '{manifest.host}' at {at:%Y-%m-%d %H:%M:%S} UTC, {state}."]
    if manifest.unsettled:
        parts.append(
            f"{len(manifest.unsettled)} file(s) were being written at that time: their copies are older, or missing."
        )
    if manifest.left_out_files:
        parts.append(
            f"{manifest.left_out_files} file(s), {byte_size(manifest.left_out_bytes)}, were beyond the limits and stay "
            f"on the host, e.g. {manifest.left_out[0] if manifest.left_out else '?'}."
        )
    return parts
