"""Images, tables and texts of a trial from a server."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_provider_dtrain.client.downloads import places_below, save
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.resources.media import MediaItem
from airflow_provider_dtrain.terminal.media import chosen_media, local_name, show_media
from airflow_provider_dtrain.terminal.output import hint, note


def media(args: Namespace) -> None:
    """List the media of a trial, or write them to a folder."""
    session = session_of(args)
    found = ServerSource(session).media(args.trial_id)
    if args.to is None:
        show_media(args, found, "dtrain")
        if not found.series:
            hint(f"dtrain trials download {args.trial_id} work/media --to media (asks its host)")
        return
    target = Path(args.to)
    items = [one for of_key in chosen_media(found, args.key, args.trial_id).values() for one in of_key]
    places = places_below(target, [local_name(one) for one in items])
    for one in items:
        save_media(session, args.trial_id, one, places[local_name(one)])
    note(f"{len(items)} file(s) are in {target}.")


def save_media(session: Session, trial_id: int, item: MediaItem, target: Path) -> None:
    """Write a file of media.

    :raises ConflictError: the file exists
    """
    save(session, f"/trials/{trial_id}/outputs/download", target, path=item.path)
