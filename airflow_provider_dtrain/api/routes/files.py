"""Copies of checkpoints and outputs: lists and downloads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.downloads import checkpoint_download, checkpoint_pieces
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.found import trial_entry
from airflow_provider_dtrain.api.models.checkpoints import Download, Output, Outputs
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.streams import download, file_pieces
from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.engine.copies.output_generations import Generation, OutputCopies
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.records.pages import TrialEntry

router = APIRouter(route_class=StoreRoute, tags=["files"], responses=ERRORS)

#: Most outputs in one list.
OUTPUTS_MOST = 2000


@router.get("/trials/{trial_id}/outputs", **guarded(Rule.READ))
def outputs(call: CallDep, trial_id: int) -> Outputs:
    """Return the files that rank 0 of a trial wrote, as of their last copy on this machine."""
    found = _generation(call, trial_entry(call, trial_id))
    if found is None:
        return Outputs(rows=[], truncated=False)
    files = sorted(found.manifest.files.items())
    here = Download(possible=True, reason="", files=1)
    rows = [
        Output(path=path, size_bytes=file.size_bytes, at=datetime.fromtimestamp(file.modified_at, UTC), download=here)
        for path, file in files[:OUTPUTS_MOST]
    ]
    return Outputs(rows=rows, truncated=len(files) > OUTPUTS_MOST or found.manifest.left_out_files > 0)


def _generation(call: Call, entry: TrialEntry) -> Generation | None:
    view = entry.view
    folder = trial_folder(call.hook.settings.checkpoint_dir, view.experiment_id, view.trial_id)
    return OutputCopies(folder).newest()


@router.get("/trials/{trial_id}/outputs/download", response_model=None, **guarded(Rule.READ))
def output_download(call: CallDep, trial_id: int, path: Annotated[str, Query(max_length=1024)]) -> Response:
    """Send one output."""
    found = _generation(call, trial_entry(call, trial_id))
    file = None if found is None else found.manifest.files.get(path)
    missing = f"Trial {trial_id} has no output {path[:200]!r} here. See: airflow dtrain trials outputs {trial_id}"
    if found is None or file is None:
        raise NotFoundError(missing)
    try:
        pieces = file_pieces(found.folder, path)
    except OSError as error:
        raise NotFoundError(missing) from error
    return download(pieces, call.downloads, PurePosixPath(path).name, file.size_bytes)


@router.get("/trials/{trial_id}/checkpoints/{checkpoint_id}/download", response_model=None, **guarded(Rule.READ))
def download_checkpoint(call: CallDep, trial_id: int, checkpoint_id: int) -> Response:
    """Send a checkpoint as a tar archive."""
    entry = trial_entry(call, trial_id)
    views = call.store.checkpoints.of_trial(trial_id, removed=True)
    view = next((one for one in views if one.checkpoint_id == checkpoint_id), None)
    if view is None:
        raise NotFoundError(f"Trial {trial_id} has no checkpoint {checkpoint_id}.")
    folder, experiment_id = call.hook.settings.checkpoint_dir, entry.view.experiment_id
    possible = checkpoint_download(view, folder, experiment_id)
    if not possible.possible:
        raise ApiError(409, "conflict", f"Checkpoint {checkpoint_id} cannot be sent. {possible.reason}")
    name = f"trial-{trial_id}-step-{view.step}"
    return download(checkpoint_pieces(call.hook, view, entry.view, name), call.downloads, f"{name}.tar")
