"""Options of a pool that its Airflow connection has: defaults, which options of the pool replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Type of Airflow connections to login nodes. A connection of type ``ssh`` works as well, without such options.
CONN_TYPE: Final = "dtrain_slurm"
#: Fields of the connection's form that are options of a pool.
FIELDS: Final = ("account", "partition", "setup")


def defaults_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the extra of a connection has, under the names of :class:`.SlurmOptions`.

    Empty fields of a form are left out, and lines of a form end as those of a file.
    """
    found = {name: extra.get(name) for name in FIELDS}
    texts = {name: value.replace("\r\n", "\n") if isinstance(value, str) else value for name, value in found.items()}
    return {name: value for name, value in texts.items() if value not in (None, "")}


def without_empty(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra of a connection without empty fields, which a form stores and SSH would take for values."""
    return {name: value for name, value in extra.items() if value not in (None, "")}
