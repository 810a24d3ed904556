"""Synthetic data of a program: the first batch of its own data, repeated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any


class FirstBatches:
    """First batch of each data set of a program, loaded once."""

    def __init__(self) -> None:
        #: Id of a data set -> the data set, so that no other one gets its id, and its first batch.
        self._held: dict[int, tuple[Any, Any]] = {}

    def of(self, data: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Return an endless iterator over the first batch of a data set.

        :param batches: batches of the data set; read only if this is the first call with it
        """
        if id(data) not in self._held:
            for batch in batches:
                self._held[id(data)] = data, batch
                break
            else:
                return iter(())
        return itertools.repeat(self._held[id(data)][1])
