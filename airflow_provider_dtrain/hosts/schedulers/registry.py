"""External schedulers by the name that a pool has as its backend.

Another scheduler is a folder beside ``hosts/slurm`` with a ``KIND``, and a line of :data:`MODULES`.
"""

from __future__ import annotations

import importlib
from typing import Final

from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.hosts.schedulers.base import SchedulerKind

#: Backend of a pool -> module whose ``KIND`` is a :class:`.SchedulerKind`.
MODULES: Final[dict[str, str]] = {"slurm": "airflow_provider_dtrain.hosts.slurm.scheduler"}


def scheduler_kind(backend: str) -> SchedulerKind:
    """Return a kind of scheduler.

    :raises UserError: there is no such backend
    """
    if backend not in MODULES:
        raise UserError(f"A pool's backend is hosts or one of {', '.join(sorted(MODULES))}, got {backend!r}.")
    kind: SchedulerKind = importlib.import_module(MODULES[backend]).KIND
    return kind
