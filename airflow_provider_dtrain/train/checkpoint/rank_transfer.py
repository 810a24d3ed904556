"""Bytes of a checkpoint that ranks on other hosts send to rank 0, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from airflow_provider_dtrain.train.distributed import Distributed

#: Size of a piece, bytes. Rank 0 holds one at a time.
SENT_BYTES = 8 << 20
_LENGTH_BYTES = 8


class Sink(Protocol):
    """Receiver of the bytes of one rank."""

    def write(self, view: memoryview) -> object:
        """Take all of a view. An error here would leave the other ranks waiting, so a sink keeps it until the end."""


class RankTransfer:
    """Transfer of a known number of bytes from each of some ranks to rank 0.

    :param group: a group of ``Distributed.new_group``, if another thread exchanges messages as well
    """

    def __init__(self, distributed: Distributed, group: Any = None) -> None:
        self._distributed = distributed
        self._group = group

    def send(self, size_bytes: int, write: Callable[[Any], object]) -> None:
        """Send bytes to rank 0.

        :param write: writes exactly ``size_bytes`` bytes to the file object that it gets, also if it raises after that
        """
        pieces = _Pieces(lambda view: self._distributed.send_bytes(view, 0, self._group))
        pieces.write(size_bytes.to_bytes(_LENGTH_BYTES, "little"))
        pieces.flush()
        try:
            write(pieces)
        finally:
            pieces.flush()

    def receive(self, sinks: Mapping[int, Sink]) -> None:
        """Receive on rank 0 what the other ranks send, one piece of each rank in turn, so that none waits for long.

        :param sinks: rank -> receiver of its bytes
        """
        rest = {rank: self._length(rank) for rank in sinks}
        memory = bytearray(min(SENT_BYTES, max(rest.values(), default=0)))
        while rest := {rank: size for rank, size in rest.items() if size}:
            for rank, size in rest.items():
                view = memoryview(memory)[: min(SENT_BYTES, size)]
                self._distributed.receive_bytes(view, rank, self._group)
                sinks[rank].write(view)
                rest[rank] = size - len(view)

    def _length(self, rank: int) -> int:
        length = bytearray(_LENGTH_BYTES)
        self._distributed.receive_bytes(memoryview(length), rank, self._group)
        return int.from_bytes(length, "little")


class _Pieces:
    """File object that sends what is written to it, in pieces of one size and a last one.

    :param send: gets each piece, whose memory is used again for the next
    """

    def __init__(self, send: Callable[[memoryview], None]) -> None:
        self._send = send
        self._memory = bytearray(SENT_BYTES)
        self._held = 0

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = rest.nbytes
        while rest.nbytes:
            count = min(rest.nbytes, len(self._memory) - self._held)
            self._memory[self._held : self._held + count] = rest[:count]
            self._held += count
            rest = rest[count:]
            if self._held == len(self._memory):
                self.flush()
        return size

    def flush(self) -> None:
        if self._held:
            self._send(memoryview(self._memory)[: self._held])
            self._held = 0
