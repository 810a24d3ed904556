"""Ranks that exchange their messages without PyTorch, for programs of any framework."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_dtrain.train.distributed import DONE, LEADER_TIMEOUT_S, PIECE_BYTES, Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import LeaderFailedError, LostRankError, SetupError
from airflow_provider_dtrain.train.process import message_server, rendezvous
from airflow_provider_dtrain.train.process.heartbeat import FOLLOWERS, HERE, MESSAGE, RANK_0, Place
from airflow_provider_dtrain.train.values import JsonObject


class PlainRanks(Distributed):
    """Messages over one connection per rank to rank 0. Values are JSON: tuples arrive as lists.

    :param connection: to the message server of the gang
    :param server: on rank 0
    """

    def __init__(
        self, env: RankEnvironment, connection: socket.socket, server: message_server.MessageServer | None = None
    ) -> None:
        super().__init__(env)
        self._connection = connection
        self._server = server
        self._turn = threading.Lock()
        self._exchanges = self._calls = 0
        #: (rank that sends, rank that receives) -> number of pieces so far
        self._pieces: dict[tuple[int, int], int] = {}

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        self.exchange(b"")

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank, on every rank.

        :param value: any JSON value
        """
        return [json.loads(part) for part in self.exchange(_packed(value))]

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value, in order of rank, on rank 0, and None on the other ranks."""
        parts = self.exchange(_packed(value), to=0)
        return [json.loads(part) for part in parts] if self.rank == 0 else None

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value on every rank."""
        return json.loads(self.exchange(_packed(value) if self.rank == 0 else b"")[0])

    def largest(self, number: int) -> int:
        """Return the largest of all ranks' numbers. The answer is the same on every rank."""
        return max(int(value) for value in self.allgather(number))

    def broadcast_bytes(self, content: bytes | None = None) -> bytes:
        """Return rank 0's bytes on every rank."""
        size = int(self.broadcast(len(content) if content is not None else None))
        whole = bytearray()
        for start in range(0, size, PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES] if content is not None and self.rank == 0 else b""
            whole += self.exchange(piece)[0]
        return bytes(whole)

    def send_bytes(self, view: memoryview, rank: int, group: Any = None) -> None:
        """Send bytes to a rank, which calls :meth:`receive_bytes`. Waits until it has them, which bounds the memory."""
        key = self._next_piece(self.rank, rank)
        with HERE.at(MESSAGE):
            self._set(key, bytes(view))
            self._take(f"{key}/taken")

    def receive_bytes(self, view: memoryview, rank: int, group: Any = None) -> None:
        """Fill a view with the bytes that a rank sends by :meth:`send_bytes`."""
        key = self._next_piece(rank, self.rank)
        with HERE.at(MESSAGE):
            view[:] = self._take(key)
            self._set(f"{key}/taken", b"")

    def first_value(self, key: str, value: str) -> str:
        """Return the value of the rank that was the first to call this with the key. Waits for no other rank."""
        return self._request({"op": "first", "key": f"first/{key}"}, value.encode())[1][0].decode()

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a counter that all ranks share, and return its new value. Waits for no other rank."""
        return int(self._request({"op": "add", "key": key, "amount": amount})[0]["count"])

    def post(self, key: str, text: str) -> None:
        """Leave a text for other ranks, which :meth:`posted` returns. Waits for no other rank."""
        self._set(f"post/{key}", text.encode())

    def posted(self, key: str) -> str:
        """Return the text that a rank posted under a key. Waits for it."""
        return self._get(f"post/{key}").decode()

    @contextlib.contextmanager
    def local_leader_first(self) -> Iterator[None]:
        """Run the block on local rank 0 of each host before the other ranks of that host run it."""
        self._calls += 1
        host = self.get_host_rank()
        with self._after(
            f"leader/{host}/{self._calls}", self.local_rank == 0, f"Local rank 0 of host {host}", FOLLOWERS
        ):
            yield

    def on_chief(self, function: Any) -> Any:
        """Return the result of the function on every rank. Only rank 0 runs it."""
        self._calls += 1
        with self._after(f"chief/{self._calls}", self.rank == 0, "Rank 0", RANK_0):
            value = function() if self.rank == 0 else None
        return self.broadcast(value)

    def leave(self) -> None:
        """Close the connection of a finished gang."""
        with contextlib.suppress(OSError):
            message_server.send(self._connection, {"op": "leave"})
            self._connection.close()
        if self._server is not None:
            self._server.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def exchange(self, content: bytes, to: int | None = None) -> Sequence[bytes]:
        """Return every rank's bytes, in order of rank. Called by all ranks.

        :param to: the only rank that gets them; the other ranks get none
        """
        self._exchanges += 1
        with HERE.at(MESSAGE):
            return self._request({"op": "exchange", "key": str(self._exchanges), "to": to}, content)[1]

    @contextlib.contextmanager
    def _after(self, key: str, leads: bool, rank_name: str, place: Place) -> Iterator[None]:
        """Run the block on the leader, then on the other ranks."""
        if not leads:
            with HERE.at(place):
                found = self._get(key, LEADER_TIMEOUT_S)
            if found != DONE:
                error = found.decode(errors="replace")
                raise LeaderFailedError(f"{rank_name} failed while other ranks waited: {error}")
            yield
            return
        try:
            yield
        except BaseException as error:
            self._set(key, f"{type(error).__name__}: {error}"[:2000].encode(errors="replace"))
            raise
        self._set(key, DONE)

    def _set(self, key: str, content: bytes) -> None:
        self._request({"op": "set", "key": key}, content)

    def _next_piece(self, source: int, target: int) -> str:
        number = self._pieces[source, target] = self._pieces.get((source, target), 0) + 1
        return f"piece/{source}/{target}/{number}"

    def _take(self, key: str) -> bytes:
        """Return a value once it is set, and remove it."""
        return self._request({"op": "take", "key": key, "timeout_s": 1800.0})[1][0]

    def _get(self, key: str, timeout_s: float = 1800.0) -> bytes:
        return self._request({"op": "get", "key": key, "timeout_s": timeout_s})[1][0]

    def _request(self, header: JsonObject, content: bytes = b"") -> tuple[JsonObject, list[bytes]]:
        try:
            with self._turn:
                message_server.send(self._connection, header, content)
                answer, _ = message_server.receive(self._connection)
                parts = [message_server.exactly(self._connection, size) for size in answer["sizes"]]
        except OSError as error:
            raise LostRankError(f"The ranks cannot exchange messages, because rank 0 has left: {error}") from error
        if "error" in answer:
            raise LostRankError(f"The ranks cannot exchange messages: {answer['error']}")
        return answer, parts


def _packed(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"Without PyTorch, ranks exchange JSON values, got {type(value).__name__}: {error}. Convert it to numbers, "
            "texts, lists and dicts with texts as keys."
        ) from error


def join(env: RankEnvironment, *, timeout_s: float) -> Distributed:
    """Return the gang after this process is connected to rank 0. A single process connects to none.

    :raises SetupError: the rendezvous has no address, or rank 0 does not answer
    """
    if env.world_size == 1:
        return Distributed(env)
    run = env.run or ""
    try:
        host, port = message_server.rendezvous_address()
        server = None
        if env.rank == 0:
            rendezvous.uninstall()
            server = message_server.MessageServer(host, port, size=env.world_size, run=run, timeout_s=timeout_s)
        connection = message_server.connect(
            host, port, rank=env.rank, size=env.world_size, run=run, timeout_s=min(timeout_s, 300.0)
        )
    except KeyError as error:
        raise SetupError(
            f"{error.args[0]} is not set. Start the ranks as a trial, or set torchrun's variables."
        ) from None
    except (LostRankError, OSError, ValueError) as error:
        raise SetupError(f"Rank {env.rank} cannot join the other ranks: {error}") from error
    return PlainRanks(env, connection, server)
