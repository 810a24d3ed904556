"""A host in this process that has the logs of ranks and their clocks, for operations that copy logs."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

from airflow_provider_dtrain.errors import HostRefusedError, HostUnreachableError
from airflow_provider_dtrain.store.store import Store


class LogHost:
    """Logs that a test writes, as ``read`` answers with them.

    :param clock_offset_s: seconds by which its clock is ahead
    """

    def __init__(self, store: Store, clock_offset_s: float = 0.0) -> None:
        self.store = store
        self.clock_offset_s = clock_offset_s
        self.logs: dict[int, bytes] = {}
        self.clocks: dict[int, list[tuple[int, float]]] = {}
        #: The middle that ``log_limit`` has freed, [start, end).
        self.freed: tuple[int, int] | None = None
        self.is_away = False
        self.reads: list[tuple[str, int, int]] = []

    def hook(self) -> Any:
        """Return a hook whose only host is this one."""
        link = SimpleNamespace(call=self._call, clock_offset_s=self.clock_offset_s)
        return SimpleNamespace(store=self.store, link=lambda _: link)

    def write(self, rank: int, data: bytes, at_s: float | None = None) -> None:
        """Append to a log, and to its clock if a time is given."""
        self.logs[rank] = self.logs.get(rank, b"") + data
        if at_s is not None:
            self.clocks.setdefault(rank, []).append((len(self.logs[rank]), at_s))

    def _call(self, _cmd: str, *, run: str, stream: str, offset: int, length: int) -> Any:
        self.reads.append((stream, offset, length))
        return SimpleNamespace(result=lambda _: self._answer(stream, offset, length))

    def _answer(self, stream: str, offset: int, length: int) -> dict[str, Any]:
        if self.is_away:
            raise HostUnreachableError("a", "Host 'a' does not answer.")
        rank, _, kind = stream.removeprefix("rank").partition(".")
        if kind == "clock" and int(rank) not in self.clocks:
            raise HostRefusedError("a", "There is no clock.", code="unknown_stream")
        clock = b"".join(struct.pack("<Qd", *one) for one in self.clocks.get(int(rank), ()))
        data = clock if kind == "clock" else self.logs[int(rank)]
        start = max(0, len(data) + offset) if offset < 0 else offset
        found = data[start : start + length]
        if kind == "log" and self.freed is not None:
            hole = self.freed
            if hole[0] <= start < hole[1]:
                start, found = hole[1], data[hole[1] : hole[1] + length]
            elif start < hole[0] < start + len(found):
                found = found[: hole[0] - start]
        return {"offset": start, "data": found, "size": len(data)}
