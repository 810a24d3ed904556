"""Places at which a text file can be cut into shards: a row begins there, and its number is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: Most places of a file that are kept, unless the rows of a shard are configured.
PLACES_MOST = 4096


class RowStart(NamedTuple):
    """The beginning of a row."""

    #: Byte of the file.
    offset: int
    #: Number of the record from 0 on. The header and blank lines are records too.
    record: int


@dataclass(frozen=True)
class Cuts:
    """The beginning of every ``stride``-th row of a file."""

    places: tuple[RowStart, ...]
    stride: int
    #: Rows and bytes of the file, and bytes of its longest record.
    rows: int
    size: int
    longest: int

    def ranges(self, most: int) -> Iterator[tuple[int, int, RowStart, int]]:
        """Yield the ranges of shards: first row, row behind the last, place of the first, byte behind the last.

        :param most: rows of a shard; rounded up to a multiple of the stride
        """
        step = -(-most // self.stride)
        for i in range(0, len(self.places), step):
            is_last = i + step >= len(self.places)
            stop = self.rows if is_last else (i + step) * self.stride
            yield i * self.stride, stop, self.places[i], self.size if is_last else self.places[i + step].offset


def cuts_of(records: Iterable[tuple[int, bool]], stride: int, *, is_fixed: bool) -> Cuts:
    """Return the places at which a file can be cut, from one pass over its records.

    :param records: bytes of each record, and whether it is a row
    :param stride: rows from one place to the next
    :param is_fixed: False: the stride is doubled as long as there would be too many places
    """
    places: list[RowStart] = []
    rows = offset = longest = 0
    for number, (size, is_row) in enumerate(records):
        if is_row:
            if rows % stride == 0:
                places.append(RowStart(offset, number))
                if len(places) > PLACES_MOST and not is_fixed:
                    places, stride = places[::2], stride * 2
            rows += 1
        offset += size
        longest = max(longest, size)
    return Cuts(tuple(places), stride, rows, offset, longest)
