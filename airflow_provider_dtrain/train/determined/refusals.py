"""Refusals of the calls of Determined that have no equal here, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from airflow_provider_dtrain.train.errors import NotOfferedError, SetupError


def refuse(owner: str, shown: str, name: str, instead: Mapping[str, str]) -> NoReturn:
    """Raise for a name that an object or a module does not have.

    :param owner: the object or module, for the message of a name that Determined lacks, too
    :param shown: its name in scripts
    :param instead: name of Determined -> remedy
    :raises NotOfferedError: Determined has the name
    :raises AttributeError: it has not
    """
    if name in instead:
        raise NotOfferedError(f"{shown}.{name} is not offered. {instead[name]}")
    raise AttributeError(f"{owner} has no attribute {name!r}")


def refuse_worker(rank: int, call: str) -> None:
    """Raise on all ranks but rank 0.

    :param call: name of the call in scripts
    :raises SetupError: the rank is not 0
    """
    if rank != 0:
        raise SetupError(
            f"{call} is for rank 0, and rank {rank} called it. Put the call into "
            "'if core_context.distributed.rank == 0:'."
        )
