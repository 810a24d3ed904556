"""Media of a trial on a terminal: a row per file, and the names that the files get on this machine."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.media_names import FOLDER, media_name
from airflow_provider_dtrain.errors import ServerError, UsageError
from airflow_provider_dtrain.resources.media import MediaItem, TrialMedia
from airflow_provider_dtrain.terminal.output import hint, is_table, note, show


def chosen_media(found: TrialMedia, key: str | None, trial_id: int) -> dict[str, list[MediaItem]]:
    """Return the files by key.

    :param key: None = all of them
    :raises UsageError: the trial has no such key
    """
    series = {one.key: one.items for one in found.series if key in (None, one.key)}
    if key is not None and not series:
        known = ", ".join(repr(one.key) for one in found.series) or "none"
        raise UsageError(f"Trial {trial_id} has no media with the key {key!r}. Its keys: {known}.")
    return series


def show_media(args: Namespace, found: TrialMedia, program: str) -> None:
    """List the files of a trial.

    :param program: name of the command in hints
    """
    rows = [
        {
            "key": key,
            "step": one.step,
            "kind": one.kind,
            "attempt": one.attempt,
            "size": byte_size(one.size_bytes) if is_table(args) else one.size_bytes,
            "modified": one.at,
        }
        for key, items in chosen_media(found, args.key, args.trial_id).items()
        for one in items
    ]
    show(
        args, rows, empty=f"Trial {args.trial_id} has reported no images, tables or texts, or none is copied here yet."
    )
    if found.truncated:
        note("There are more files than this list has: it has those of the latest steps.")
    if rows:
        hint(f"{program} trials media {args.trial_id} --to media")


def local_name(item: MediaItem) -> str:
    """Return the path of a file below the folder of a download.

    :raises ServerError: its path is not one that the training library gives
    """
    if media_name(item.path) is None:
        raise ServerError(f"The server has media {item.path[:200]!r} that cannot be written.")
    return item.path.removeprefix(f"{FOLDER}/")
