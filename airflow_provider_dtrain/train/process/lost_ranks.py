"""Errors of gloo after ranks have missed each other, in words that say where this rank was."""

from __future__ import annotations

import re

from airflow_provider_dtrain.train.errors import LostRankError
from airflow_provider_dtrain.train.process.heartbeat import HERE

# As PyTorch 2.4 to 2.13 raise them.
_TIMED_OUT = re.compile(r"Timed out waiting (\d+)ms for (?:send|recv) operation to complete")
_CLOSED = re.compile(r"Connection (?:closed|reset) by peer")


def error_of(error: BaseException, rank: int) -> LostRankError | None:
    """Return the error of this library for one of gloo about lost ranks, None if the error is another one.

    :param rank: this rank
    """
    if not isinstance(error, RuntimeError):
        return None
    after = f", after {HERE.steps()} steps" if HERE.steps() else ""
    where = f"Rank {rank} waited for the other ranks in {HERE.place_of(error)[1]}{after}"
    if found := _TIMED_OUT.search(str(error)):
        return LostRankError(
            f"{where}, until its time-out ({found[0]}). Their loops have other lengths than that of this rank, or they "
            "call collectives in another order: compare the places that the other ranks name. Let all ranks do the "
            "same steps, e.g. with ctx.loader."
        )
    if found := _CLOSED.search(str(error)):
        return LostRankError(f"{where}, and one of them has ended ({found[0]}). The cause is in the log of that rank.")
    return None
