"""Supervisor of a job's first node, to which followers and the other nodes connect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from .addresses import listen, listen_locally, names_of_first_node, resolve, uid_of_peer
from .connection import Connection
from .frames import DEAD_S, FROM_COMMAND, PROTOCOL, TO_COMMAND, WARNINGS_LIMIT, Frame, FrameError, Kind, with_document
from .names import socket_name
from .node import DISCONNECTED, ENDED, FLUSH_S, HANDSHAKE_S, ORPHANED, TICK_S, Node, Parameters

#: Most connections without a role. Beyond it the oldest one is closed, so that a flood delays no proper connection.
PENDING_LIMIT = 64
#: Pause after the system refused a connection, for example for lack of descriptors.
ACCEPT_PAUSE_S = 0.2


class FirstNode(Node):
    """First node: it executes commands, and passes frames on between followers and other nodes."""

    is_server = True

    def __init__(self, loop: asyncio.AbstractEventLoop, parameters: Parameters, environ: Mapping[str, str]) -> None:
        super().__init__(loop, 0, parameters, environ)
        self._count = int(environ.get("SLURM_NTASKS", "1"))
        self._pending: dict[Connection, None] = {}
        self._followers: dict[int, Connection] = {}
        self._links: dict[int, Connection] = {}
        self._hosts: dict[int, str] = {0: socket.gethostname()}
        #: Connection -> number of the follower, or of the node.
        self._peers: dict[Connection, int] = {}
        self._nodes: dict[Connection, int] = {}
        self._last_peer = 0
        self._policy_frame: Frame | None = None
        self._warnings: list[Any] = []
        self._spoken_s = loop.time()
        #: Completed at the end, when no other node is connected.
        self._is_alone: asyncio.Future[None] = loop.create_future()

    async def run(self) -> int:
        """Serve until the end, and return the exit code."""
        self.handle_signals()
        names = [*names_of_first_node(self.environ), socket.gethostname()]
        addresses = await self.loop.run_in_executor(None, resolve, names)
        listener = listen(addresses, self.parameters.ports)
        local = listen_locally(socket_name(self.job, self.parameters.certificate))
        if listener is None and (self._count > 1 or local is None):
            self.end(DISCONNECTED, f"no address of {', '.join(names)} has a free port of {self.parameters.ports}")
        if listener is not None:
            address, port = listener.getsockname()[:2]
            self.log(f"listens at {address} port {port}")
        accepting = [self.loop.create_task(self._accept(one)) for one in (listener, local) if one is not None]
        while not self.ending.done():
            await asyncio.wait({self.ending}, timeout=TICK_S)
            self.check()
            self._check_connections()
            self._check_orphan()
        for task in accepting:
            task.cancel()
        await self._say_goodbye()
        return self.ending.result()

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        while True:
            # sock_accept does not give way while connections wait.
            await asyncio.sleep(0)
            try:
                sock, _ = await self.loop.sock_accept(listener)
            except OSError:
                # The client left, or descriptors are short: the waiting connections have to go first.
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            try:
                if sock.family == socket.AF_UNIX and uid_of_peer(sock) != os.getuid():
                    sock.close()
                    continue
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                sock.close()
                continue
            self._pending[Connection(self.loop, sock, self.tls(), self)] = None
            if len(self._pending) > PENDING_LIMIT:
                next(iter(self._pending)).close("too many connections wait")

    def _check_connections(self) -> None:
        now_s = self.loop.time()
        for connection in list(self._pending):
            if now_s - connection.began_s > HANDSHAKE_S:
                connection.close(f"no role within {HANDSHAKE_S:g} s")
        for connection in [*self._peers, *self._nodes]:
            if now_s - connection.received_s > DEAD_S:
                connection.close(f"silent for {DEAD_S:g} s")

    def _check_orphan(self) -> None:
        limit_s = self.parameters.unattended_s if self.policy is None else self.policy.orphan_timeout_s
        if self.loop.time() - self._spoken_s > limit_s:
            self.end(ORPHANED, f"no follower for {limit_s:g} s")

    async def _say_goodbye(self) -> None:
        """Send the end to all nodes."""
        for link in list(self._links.values()):
            link.send(Frame(Kind.END))
        # The nodes close their connections when they end.
        if self._links:
            await asyncio.wait({self._is_alone}, timeout=FLUSH_S)

    def ready(self, connection: Connection) -> None:
        """Wait for the role of the other side."""

    def frame(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame by the role of its sender."""
        if connection in self._peers:
            self._spoken_s = self.loop.time()
            self._of_follower(self._peers[connection], connection, frame)
        elif connection in self._nodes:
            self._of_node(self._nodes[connection], connection, frame)
        elif frame.kind == Kind.FOLLOW:
            self._admit_follower(connection)
        elif frame.kind == Kind.JOIN:
            self._admit_node(connection, frame)
        else:
            raise FrameError(f"a connection began with a frame {frame.kind.name}")

    def _admit_follower(self, connection: Connection) -> None:
        self._pending.pop(connection, None)
        self._last_peer += 1
        self._peers[connection] = self._last_peer
        self._followers[self._last_peer] = connection
        self._spoken_s = self.loop.time()
        connection.send(self._hello())

    def _admit_node(self, connection: Connection, frame: Frame) -> None:
        number, host = frame.node, str(frame.document().get("host", ""))
        if not 0 < number < self._count:
            raise FrameError(f"node {number} is not one of the {self._count} nodes of the job")
        self._pending.pop(connection, None)
        if (former := self._links.get(number)) is not None:
            former.close("the node has connected again")
        self._nodes[connection] = number
        self._links[number] = connection
        self._hosts[number] = host
        connection.send(self._hello())
        if self._policy_frame is not None:
            connection.send(self._policy_frame)
        self._publish(with_document(Kind.JOINED, {"node": number, "host": host}, node=number))

    def _hello(self) -> Frame:
        document = {
            "protocol": PROTOCOL,
            "job": self.job,
            "nodes": self._count,
            "hosts": {str(number): self._hosts[number] for number in (0, *self._links)},
            "warnings": self._warnings,
        }
        return with_document(Kind.HELLO, document)

    def _of_follower(self, peer: int, connection: Connection, frame: Frame) -> None:
        if frame.kind in TO_COMMAND:
            self._pass_to_command(connection, frame._replace(peer=peer))
        elif frame.kind == Kind.PING:
            connection.send(frame._replace(kind=Kind.PONG))
        elif frame.kind == Kind.POLICY:
            self.set_policy(frame)
            self._policy_frame = frame
            for link in self._links.values():
                link.send(frame)
        elif frame.kind == Kind.END:
            self.end(ENDED, "a follower ended the job")
        else:
            raise FrameError(f"a follower sent a frame {frame.kind.name}")

    def _pass_to_command(self, connection: Connection, frame: Frame) -> None:
        link = self._links.get(frame.node)
        if frame.node == 0:
            self.commands.handle(connection, frame)
        elif link is not None:
            link.send(frame)
        elif frame.kind == Kind.OPEN:
            document = {"message": "it is not connected to the first node of the job"}
            connection.send(with_document(Kind.FAILED, document, node=frame.node, stream=frame.stream))

    def _of_node(self, number: int, connection: Connection, frame: Frame) -> None:
        if frame.kind in FROM_COMMAND:
            if (follower := self._followers.get(frame.peer)) is not None:
                follower.send(frame._replace(node=number))
        elif frame.kind == Kind.PING:
            connection.send(frame._replace(kind=Kind.PONG))
        elif frame.kind == Kind.WARNING:
            self.report_warning(frame._replace(node=number))
        else:
            raise FrameError(f"node {number} sent a frame {frame.kind.name}")

    def closed(self, connection: Connection, reason: str) -> None:
        """Forget a connection, with the commands of a follower."""
        self._pending.pop(connection, None)
        if (peer := self._peers.pop(connection, None)) is not None:
            self._followers.pop(peer, None)
            self.commands.close_peer(peer)
            for link in list(self._links.values()):
                link.send(Frame(Kind.GONE, peer=peer))
        if (number := self._nodes.pop(connection, None)) is not None:
            del self._links[number]
            if self.ending.done() and not self._links and not self._is_alone.done():
                self._is_alone.set_result(None)
            self.log(f"node {number} is lost: {reason}")
            self._publish(with_document(Kind.LOST, {"node": number}, node=number))

    def report_warning(self, warning: Frame) -> None:
        """Send a warning to all followers, and keep it for later ones."""
        with contextlib.suppress(FrameError):
            self._warnings.append(warning.document())
            del self._warnings[:-WARNINGS_LIMIT]
            self._publish(warning)

    def _publish(self, frame: Frame) -> None:
        for follower in list(self._followers.values()):
            follower.send(frame)
