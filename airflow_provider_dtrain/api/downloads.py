"""Copies of checkpoints and outputs that the API server can send, and the reason for those that it cannot."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.api.models.checkpoints import Download
from airflow_provider_dtrain.api.streams import FILES_MOST, TAR_END, member_pieces, tar_pieces
from airflow_provider_dtrain.core.checkpoint_location import StorageKind
from airflow_provider_dtrain.engine.copies.checkpoints import copy_path
from airflow_provider_dtrain.store.records.trials import CheckpointView, TrialView

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

#: Scheme of a bucket's URL -> module that reaches it, and the extra that installs it.
_MODULES = {"s3": ("s3fs", "s3"), "gcs": ("gcsfs", "gcs"), "abfs": ("adlfs", "azure")}


def checkpoint_download(view: CheckpointView, checkpoint_dir: Path, experiment_id: int) -> Download:
    """Return whether the API server can send a checkpoint."""
    reason = _checkpoint_reason(view, checkpoint_dir, experiment_id)
    return Download(possible=not reason, reason=reason, files=None)


def _checkpoint_reason(view: CheckpointView, checkpoint_dir: Path, experiment_id: int) -> str:
    if view.refused is not None or view.place is None:
        return f"It is not used: {view.refused or 'its path is outside the configured places'}."
    if view.copy_url is not None:
        own = copy_path(checkpoint_dir, experiment_id, view)
        if view.copy_url != str(own) or not own.is_dir():
            return f"Its copy is in {view.copy_url} on another machine, where a worker or triggerer made it."
        return ""
    if view.removed_at is not None:
        return "It was removed, and it has no copy."
    if view.place.kind is StorageKind.BUCKET:
        module, extra = _MODULES.get(view.place.path.partition("://")[0], ("fsspec", "s3"))
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed on the API server: pip install 'airflow-provider-dtrain[{extra}]'"
        return ""
    if view.place.kind is StorageKind.SHARED:
        return f"It is in the folder that the hosts share: {view.place.path}"
    return (
        f"It is only on host '{view.host}', and the API server opens no connection to hosts. For its path: "
        f"airflow dtrain trials checkpoints {view.trial_id}"
    )


def checkpoint_pieces(hook: DtrainHook, view: CheckpointView, trial: TrialView, name: str) -> Iterator[bytes]:
    """Yield a checkpoint that the API server can send, as a tar archive.

    :param name: folder of the files in the archive
    """
    if view.copy_url is not None:
        return tar_pieces(copy_path(hook.settings.checkpoint_dir, trial.experiment_id, view), name)
    return _bucket_pieces(hook, view, trial, name)


def _bucket_pieces(hook: DtrainHook, view: CheckpointView, trial: TrialView, name: str) -> Iterator[bytes]:
    from airflow_provider_dtrain.hooks.secrets import storage_config_now
    from airflow_provider_dtrain.store.configs import model_of
    from airflow_provider_dtrain.train.checkpoint.storage_options import file_system

    assert view.place is not None
    stored = hook.store.configs.get(trial.config_id)
    url = view.place.path
    system = file_system(url, storage_config_now(model_of(stored), stored.secrets))
    root = url.partition("://")[2].rstrip("/")
    found = sorted(system.find(root, detail=True).items())[:FILES_MOST]
    for path, facts in found:
        relative = str(path).removeprefix(root).lstrip("/")
        with system.open(path, "rb") as file:
            yield from member_pieces(f"{name}/{relative}", file, int(facts["size"]), view.at.timestamp())
    yield TAR_END
