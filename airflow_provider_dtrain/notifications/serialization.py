"""Notifiers on their way to the triggerer, which has no DAG file: class and attributes as JSON."""

from __future__ import annotations

import json
from typing import TypedDict

from airflow.sdk import BaseNotifier

from airflow_provider_dtrain.core.documents import JsonObject

#: Airflow's modules of DAG files begin with this; no other process can import them.
_DAG_MODULE = "unusual_prefix_"


class PackingError(ValueError):
    """The notifier cannot run in the triggerer."""


class PackedNotifier(TypedDict):
    """A notifier as JSON."""

    #: Path of its class.
    path: str
    #: Its attributes.
    state: JsonObject


class PackedNotifications(TypedDict):
    """Notifiers that the follower of a trial runs, and the seconds after which the trial waits long."""

    limit_s: float
    waited: list[PackedNotifier]
    straggler: list[PackedNotifier]


def pack(notifier: BaseNotifier) -> PackedNotifier:
    """Return a notifier as JSON.

    :raises PackingError: its class is defined in a DAG file, or an attribute is not JSON
    """
    cls = type(notifier)
    if cls.__module__.startswith(_DAG_MODULE) or "<locals>" in cls.__qualname__:
        raise PackingError(
            f"{cls.__name__} is defined in a DAG file, and the triggerer cannot import it. Move it into a plugin or a "
            "package, or follow the trial in the worker: deferrable=False."
        )
    state = {name: value for name, value in vars(notifier).items() if name != "context" and not name.startswith("_")}
    for name, value in state.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise PackingError(
                f"{cls.__name__}.{name} is a {type(value).__name__}, and only JSON can be sent to the triggerer. Use a "
                "notifier with plain values, or follow the trial in the worker: deferrable=False."
            ) from None
    return {"path": f"{cls.__module__}.{cls.__qualname__}", "state": json.loads(json.dumps(state))}


def unpack(packed: PackedNotifier) -> BaseNotifier:
    """Return the notifier of :func:`pack`.

    :raises PackingError: there is no such notifier in this process
    """
    from airflow.sdk.module_loading import import_string  # type: ignore[attr-defined]

    try:
        cls = import_string(packed["path"])
    except ImportError as error:
        raise PackingError(f"The triggerer cannot import {packed['path']}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, BaseNotifier)):
        raise PackingError(f"{packed['path']} is no notifier.")
    notifier: BaseNotifier = cls.__new__(cls)
    vars(notifier).update({**packed["state"], "context": {}})
    return notifier
