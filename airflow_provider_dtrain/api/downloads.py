"""Copies of checkpoints and outputs that the API server can send, and the reason for those that it cannot."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.models.checkpoints import Download
from airflow_provider_dtrain.api.storage_access import storage_refusal
from airflow_provider_dtrain.api.streams import TAR_END, member_pieces, require_few, tar_pieces
from airflow_provider_dtrain.core.checkpoint_location import StorageKind
from airflow_provider_dtrain.core.paths_below import plain_parts
from airflow_provider_dtrain.engine.copies.checkpoints import copy_path
from airflow_provider_dtrain.store.records.trials import CheckpointView, TrialView

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

#: Scheme of a bucket's URL -> module that reaches it, and the extra that installs it.
_MODULES = {"s3": ("s3fs", "s3"), "gcs": ("gcsfs", "gcs"), "abfs": ("adlfs", "azure")}


def checkpoint_download(call: Call, view: CheckpointView, experiment_id: int) -> Download:
    """Return whether the API server can send a checkpoint."""
    reason = _checkpoint_reason(call, view, experiment_id)
    return Download(possible=not reason, reason=reason, files=None)


def _checkpoint_reason(call: Call, view: CheckpointView, experiment_id: int) -> str:
    if view.refused is not None or view.place is None:
        return f"It is not used: {view.refused or 'its path is outside the configured places'}."
    if view.copy_url is not None:
        own = copy_path(call.hook.settings.checkpoint_dir, experiment_id, view)
        if view.copy_url != str(own) or not own.is_dir():
            return f"Its copy is in {view.copy_url} on another machine, where a worker or triggerer made it."
        return ""
    if view.removed_at is not None:
        return "It was removed, and it has no copy."
    if view.place.kind is StorageKind.BUCKET:
        return _bucket_reason(call, view, view.place.path)
    if view.place.kind is StorageKind.SHARED:
        return f"It is in the folder that the hosts share: {view.place.path}"
    return (
        f"It is only on host '{view.host}', and the API server opens no connection to hosts. For its path: "
        f"airflow dtrain trials checkpoints {view.trial_id}"
    )


def _bucket_reason(call: Call, view: CheckpointView, url: str) -> str:
    config = call.store.configs.get(call.store.trials.get(view.trial_id).config_id)
    storage = config.document.get("checkpoint_storage") or {}
    if refusal := storage_refusal(storage, call.hook.settings.download_storage):
        return refusal
    module, extra = _MODULES.get(url.partition("://")[0], ("fsspec", "s3"))
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed on the API server: pip install 'airflow-provider-dtrain[{extra}]'"
    return ""


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
    from airflow_provider_dtrain.train.files.file_systems import file_system

    assert view.place is not None
    stored = hook.store.configs.get(trial.config_id)
    url = view.place.path
    system = file_system(url, storage_config_now(model_of(stored), stored.secrets), is_patient=False)
    root = url.partition("://")[2].rstrip("/")
    found = sorted(system.find(root, detail=True).items())
    require_few(len(found))
    for path, facts in found:
        member = f"{name}/{_below(str(path), root)}"
        yield from member_pieces(member, system.open(path, "rb"), int(facts["size"]), view.at.timestamp())
    yield TAR_END


def _below(path: str, root: str) -> str:
    """Return the path of an object below a folder of its bucket.

    :raises ApiError: the name of the object would lead out of the folder into which a user unpacks the archive
    """
    inner = path.removeprefix(f"{root}/") if path.startswith(f"{root}/") else ""
    try:
        return "/".join(plain_parts(inner))
    except ValueError:
        words = f"The storage has an object that is no file of a checkpoint: {path[:200]!r}."
        raise ApiError(409, "conflict", words) from None
