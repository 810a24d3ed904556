"""``airflow dtrain trials media``: the images, tables and texts that a trial reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.cli.trials_outputs import refuse_taken, write_copy
from airflow_provider_dtrain.terminal.media import chosen_media, local_name, show_media
from airflow_provider_dtrain.terminal.output import note

if TYPE_CHECKING:
    from argparse import Namespace


@command
def media(args: Namespace) -> None:
    """List the media of a trial, or write them to a folder of this machine."""
    from airflow_provider_dtrain.engine.copies.media_files import media_of
    from airflow_provider_dtrain.engine.operations.outputs import outputs_of
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    with outputs_of(DtrainHook(), args.trial_id) as copy:
        found = media_of(copy)
        if args.to is None:
            show_media(args, found, "airflow dtrain")
            return
        target = Path(args.to)
        items = [one for of_key in chosen_media(found, args.key, args.trial_id).values() for one in of_key]
        refuse_taken(target, [local_name(one) for one in items])
        for one in items:
            write_copy(copy.path(one.path), target / local_name(one))
        note(f"{len(items)} file(s) are in {target}.")
