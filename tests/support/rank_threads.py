"""Ranks as threads of one process. One thread runs at a time, between exchanges."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment

DEADLINE_S = 60.0


class ThreadRank(Distributed):
    """A rank that exchanges values with the other threads.

    An exchange that a thread does not enter fails on all of them after a time-out.
    """

    def __init__(
        self, rank: int, size: int, baton: threading.Lock, meeting: threading.Barrier, box: list[Any], sent: Any = None
    ) -> None:
        super().__init__(RankEnvironment(rank=rank, world_size=size))
        self._baton, self._meeting, self._box = baton, meeting, box
        #: (rank that sends, rank that receives) -> pieces on their way
        self._sent = sent
        self.exchanges = 0

    def allgather(self, value: Any) -> list[Any]:
        self.exchanges += 1
        self._box[self.rank] = value
        self._baton.release()
        try:
            self._meeting.wait(DEADLINE_S)
            values = list(self._box)
            self._meeting.wait(DEADLINE_S)
        finally:
            self._baton.acquire()
        return values

    def gather(self, value: Any) -> list[Any] | None:
        values = self.allgather(value)
        return values if self.rank == 0 else None

    def broadcast(self, value: Any = None) -> Any:
        return self.allgather(value)[0]

    def send_bytes(self, view: memoryview, rank: int, group: Any = None) -> None:
        self._sent[self.rank, rank].put(bytes(view))

    def receive_bytes(self, view: memoryview, rank: int, group: Any = None) -> None:
        sent = self._sent[rank, self.rank]
        self._baton.release()
        try:
            view[:] = sent.get(timeout=DEADLINE_S)
        finally:
            self._baton.acquire()

    def broadcast_bytes(self, content: bytes | None = None) -> bytes:
        return bytes(self.broadcast(content))


def in_ranks(size: int, body: Callable[[Any], Any], kind: type[ThreadRank] | None = None) -> list[Any]:
    """Return the body's result, or the exception that it raised, for each rank.

    :param kind: class of the ranks
    """
    baton, meeting, box = threading.Lock(), threading.Barrier(size), [None] * size
    results: list[Any] = [None] * size
    exchanges = [0] * size
    sent = {(a, b): queue.Queue() for a in range(size) for b in range(size)}

    def run(rank: int) -> None:
        distributed = (kind or ThreadRank)(rank, size, baton, meeting, box, sent)
        with baton:
            try:
                results[rank] = body(distributed)
            except Exception as error:
                results[rank] = error
            exchanges[rank] = distributed.exchanges

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
    assert len(set(exchanges)) == 1, f"the ranks entered {exchanges} exchanges"
    return results
