"""Names, descriptions and tags of experiments and trials: the options that change them, and their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.terminal.output import user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.labels import LabelKind
    from airflow_provider_dtrain.store.records.pages import Labels
    from airflow_provider_dtrain.store.store import Store

#: Options of ``experiments set`` and ``trials set``, for messages.
OPTIONS = "--name, --description, --tag or --untag"


def are_given(args: Namespace) -> bool:
    """Return whether a command has an option that changes labels."""
    return args.name is not None or args.description is not None or bool(args.tag or args.untag)


def set_labels(store: Store, kind: LabelKind, object_id: int, args: Namespace) -> dict[str, Any]:
    """Change the labels that the options of a command name, and return all labels of the object."""
    found = store.labels.set(
        kind,
        object_id,
        display_name=args.name,
        description=args.description,
        add_tags=args.tag or (),
        remove_tags=args.untag or (),
        by=user(),
    )
    return columns(found)


def columns(labels: Labels) -> dict[str, Any]:
    """Return labels as columns of a table."""
    return {"display_name": labels.display_name, "description": labels.description or None, "tags": list(labels.tags)}
