"""Copies of checkpoints and outputs: lists and downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.downloads import checkpoint_download, checkpoint_pieces
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.models.checkpoints import Download, Output, Outputs
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.streams import OpenFile, download, file_pieces
from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.engine.copies.output_generations import Generation, OutputCopies
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.queries.rights import readable_trial
from airflow_provider_dtrain.store.records.trials import TrialView

router = APIRouter(route_class=StoreRoute, tags=["files"], responses=ERRORS)

Prepared = TypeVar("Prepared")
#: Most outputs in one list.
OUTPUTS_MOST = 2000


@router.get("/trials/{trial_id}/outputs", **guarded(Rule.READ))
def outputs(call: CallDep, trial_id: int) -> Outputs:
    """Return the files that rank 0 of a trial wrote, as of their last copy on this machine."""
    found = generation(call, readable_trial(call.store, call.access, trial_id))
    if found is None:
        return Outputs(rows=[], truncated=False)
    files = sorted(found.manifest.files.items())
    here = Download(possible=True, reason="", files=1)
    rows = [
        Output(path=path, size_bytes=file.size_bytes, at=datetime.fromtimestamp(file.modified_at, UTC), download=here)
        for path, file in files[:OUTPUTS_MOST]
    ]
    return Outputs(rows=rows, truncated=len(files) > OUTPUTS_MOST or found.manifest.left_out_files > 0)


def generation(call: Call, trial: TrialView) -> Generation | None:
    """Return the newest copy of a trial's outputs, None without one."""
    folder = trial_folder(call.hook.settings.checkpoint_dir, trial.experiment_id, trial.trial_id)
    return OutputCopies(folder).newest()


@router.get("/trials/{trial_id}/outputs/download", response_model=None, **guarded(Rule.READ))
async def output_download(call: CallDep, trial_id: int, path: Annotated[str, Query(max_length=1024)]) -> Response:
    """Send one output."""
    file = await _prepared(call, lambda: output(call, trial_id, path))
    return await download(call, file.pieces, PurePosixPath(path).name, file.size_bytes)


def output(call: Call, trial_id: int, path: str) -> OpenFile:
    """Return the copy of an output on this machine, open.

    :raises NotFoundError: there is no such trial that the user may read, or no copy of such an output
    """
    found = generation(call, readable_trial(call.store, call.access, trial_id))
    missing = f"Trial {trial_id} has no output {path[:200]!r} here. See: airflow dtrain trials outputs {trial_id}"
    if found is None or path not in found.manifest.files:
        raise NotFoundError(missing)
    try:
        return file_pieces(found.folder, path)
    except OSError as error:
        raise NotFoundError(missing) from error


@router.get("/trials/{trial_id}/checkpoints/{checkpoint_id}/download", response_model=None, **guarded(Rule.READ))
async def download_checkpoint(call: CallDep, trial_id: int, checkpoint_id: int) -> Response:
    """Send a checkpoint as a tar archive."""
    pieces, name = await _prepared(call, lambda: _checkpoint(call, trial_id, checkpoint_id))
    return await download(call, pieces, f"{name}.tar")


def _checkpoint(call: Call, trial_id: int, checkpoint_id: int) -> tuple[Iterator[bytes], str]:
    trial = readable_trial(call.store, call.access, trial_id)
    views = call.store.checkpoints.of_trial(trial_id, removed=True)
    view = next((one for one in views if one.checkpoint_id == checkpoint_id), None)
    if view is None:
        raise NotFoundError(f"Trial {trial_id} has no checkpoint {checkpoint_id}.")
    possible = checkpoint_download(call, view, trial.experiment_id)
    if not possible.possible:
        raise ApiError(409, "conflict", f"Checkpoint {checkpoint_id} cannot be sent. {possible.reason}")
    name = f"trial-{trial_id}-step-{view.step}"
    return checkpoint_pieces(call.hook, view, trial, name), name


async def _prepared(call: Call, work: Callable[[], Prepared]) -> Prepared:
    """Run the part of a download that reads the store in the threads for it."""
    found: Prepared = await call.run(work, READ_DEADLINE_S)
    return found
