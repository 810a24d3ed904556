"""A run of one benchmark, which collects the values of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO, TypeVar

from bench.framework import peers
from bench.framework.peers import PeerError

#: Result of one call: the value of the row, or row -> value.
Measured = float | Mapping[str, float]
T = TypeVar("T")


class Run:
    """Collects values, and writes each of them at once, so that an interrupted run keeps what it has.

    :param rounds: how often each program is measured
    :param output: gets one line of JSON per value or note
    """

    def __init__(self, *, rounds: int, is_quick: bool, folder: Path, output: TextIO) -> None:
        self.rounds, self.is_quick, self.folder = rounds, is_quick, folder
        self._output = output

    def size(self, full: T, quick: T) -> T:
        """Return the first value, or the second with ``--quick``."""
        return quick if self.is_quick else full

    def add(self, row: str, side: str, *values: float) -> None:
        """Add values of one program in a row."""
        self._write({"row": row, "side": side, "values": values})

    def note(self, text: str) -> None:
        """Add a line below the table."""
        self._write({"note": text})

    def peer(self, name: str) -> str | None:
        """Return the interpreter of an environment of peers, None if it cannot be installed, which is noted."""
        try:
            python = peers.python_of(name)
        except PeerError as error:
            self.note(str(error))
            return None
        self._write({"versions": peers.versions_of(name)})
        return python

    def turns(
        self, sides: Mapping[str, Callable[[], Measured]], row: str = "", *, rounds: int = 0, warm_up: int = 0
    ) -> None:
        """Measure programs in rounds. The second round has the opposite order of the first, and so on.

        A peer that raises a :class:`PeerError` is left out from then on, and the reason is noted.

        :param row: for results that are single values
        :param warm_up: rounds before, whose values are not used
        """
        able = dict(sides)
        for number in range(warm_up + (rounds or self.rounds)):
            for side in in_turn(able, number):
                try:
                    measured = able[side]()
                except PeerError as error:
                    self.note(f"{side}: {error}")
                    del able[side]
                    continue
                if number >= warm_up:
                    for name, value in (measured if isinstance(measured, Mapping) else {row: measured}).items():
                        self.add(name, side, value)

    def _write(self, line: object) -> None:
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()


def in_turn(items: Iterable[T], number: int) -> list[T]:
    """Return the order of a round: forward in even ones, backward in odd ones."""
    ordered = list(items)
    return ordered[::-1] if number % 2 else ordered
