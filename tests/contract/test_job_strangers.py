"""Hostile and broken programs on both sides of the connection to a job."""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from airflow_provider_dtrain.errors import (
    HostAuthError,
    HostError,
    HostKeyError,
    HostProtocolError,
    HostUnreachableError,
)
from airflow_provider_dtrain.hosts.job.byte_stream import tcp_routes
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.job.job import Job
from airflow_provider_dtrain.supervisor.serve.frames import (
    DATA_BYTES,
    PROTOCOL,
    WINDOW,
    Decoder,
    Frame,
    Kind,
    exit_body,
    with_document,
)
from airflow_provider_dtrain.supervisor.serve.tls import tls_context
from tests.support.channels import drain, eventually, line_of
from tests.support.job_nodes import ADDRESS, JobNodes, job_nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[JobNodes]:
    with job_nodes(tmp_path, count=2) as made:
        yield made


def port_of(nodes: JobNodes) -> int:
    nodes.wait_listening()
    return int(nodes.output(0).partition(" port ")[2].split()[0])


def dial(nodes: JobNodes) -> socket.socket:
    return socket.create_connection((ADDRESS, port_of(nodes)), timeout=20)


def tls_to(nodes: JobNodes, identity: JobIdentity) -> ssl.SSLSocket:
    context = tls_context(nodes.identity.certificate, nodes.identity.key, is_server=False)
    if identity is not nodes.identity:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with ExitStack() as stack:
            path = Path(stack.enter_context(_file(f"{identity.key}\n{identity.certificate}")))
            context.load_cert_chain(path)
    return context.wrap_socket(dial(nodes))


@contextmanager
def _file(text: str) -> Iterator[str]:
    import tempfile

    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        yield file.name


def works(nodes: JobNodes, timeout_s: float = 10.0) -> None:
    job = nodes.job()
    for number in range(nodes.count):
        assert job.transport("node", number).run(["echo", "ok"], timeout_s=timeout_s).stdout == b"ok\n"
    job.close()


# -- strangers at the first node


def test_a_stranger_without_the_key_gets_no_further_than_the_handshake(nodes: JobNodes) -> None:
    for identity in (JobIdentity.create(), None):
        if identity is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            stranger = context.wrap_socket(dial(nodes))
        else:
            stranger = tls_to(nodes, identity)
        with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012 - the alert may come at any of these
            stranger.sendall(Frame(Kind.FOLLOW).encode() + Frame(Kind.END).encode())
            while stranger.recv(4096):
                pass
            raise ConnectionError("closed without an alert")
    works(nodes)


@pytest.mark.parametrize(
    "greeting",
    [b"SSH-2.0-OpenSSH_9.6\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 70_000, b"\0" * 100_000],
)
def test_garbage_ends_its_connection_only(nodes: JobNodes, greeting: bytes) -> None:
    with dial(nodes) as stranger:
        with suppress(ConnectionError):
            stranger.sendall(greeting)
        received = b""
        with suppress(ConnectionError):
            while chunk := stranger.recv(4096):
                received += chunk
        assert len(received) < 100
    works(nodes)


def test_a_flood_of_stalled_connections_delays_no_follower(nodes: JobNodes) -> None:
    job = nodes.job()
    connected = job.transport("node", 1)
    connected.run(["true"])
    port_of(nodes)
    ends = threading.Event()

    def flood() -> None:
        held: list[socket.socket] = []
        while not ends.is_set():
            with suppress(OSError):
                held.append(dial(nodes))
                held[-1].sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            del held[:-200]
            # Some thousand connections per second would be a denial of service for the machine.
            ends.wait(0.002)
        for one in held:
            one.close()

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        time.sleep(1)
        for _ in range(5):
            works(nodes)
            assert connected.run(["true"], timeout_s=10).exit_code == 0
    finally:
        ends.set()
        flooding.join()


def test_foreign_connections_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    with job_nodes(tmp_path) as nodes:
        held = [dial(nodes) for _ in range(200)]
        started_s = time.monotonic()
        # The oldest ones are closed at once, the newest one when its time is over.
        assert held[0].recv(1) == b""
        assert held[130].recv(1) == b""
        assert time.monotonic() - started_s < 5
        assert held[-1].recv(1) == b""
        assert time.monotonic() - started_s > 5
        for one in held:
            one.close()
        works(nodes)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(Frame(Kind.FOLLOW).encode() + b"\xff" + b"\0" * 14, id="unknown kind"),
        pytest.param(Frame(Kind.FOLLOW).encode() + b"\x07\0\0\0\0\0\0\0\0\0\1\x7f\xff\xff\xff", id="too long"),
        pytest.param(Frame(Kind.OPEN, body=b'{"argv": ["true"]}').encode(), id="no role"),
        pytest.param(with_document(Kind.JOIN, {"host": "x"}, node=9).encode(), id="no node of the job"),
        pytest.param(Frame(Kind.JOIN, 1, body=b"[").encode(), id="no JSON"),
        pytest.param(Frame(Kind.FOLLOW).encode() + Frame(Kind.POLICY, body=b"{}").encode(), id="empty policy"),
        pytest.param(Frame(Kind.FOLLOW).encode() + Frame(Kind.HELLO).encode(), id="frame of the first node"),
    ],
)  # fmt: skip
def test_a_broken_peer_with_the_key_ends_its_connection_only(nodes: JobNodes, sent: bytes) -> None:
    with tls_to(nodes, nodes.identity) as peer:
        peer.sendall(sent)
        with suppress(ConnectionError, ssl.SSLError):
            while peer.recv(65536):
                pass
    works(nodes)


def test_broken_frames_for_a_command_end_that_command_only(nodes: JobNodes) -> None:
    works(nodes)
    for number in range(2):
        with tls_to(nodes, nodes.identity) as peer:
            frames = [
                Frame(Kind.FOLLOW),
                Frame(Kind.OPEN, number, 0, 1, b"{"),
                with_document(Kind.OPEN, {"argv": []}, node=number, stream=2),
                with_document(Kind.OPEN, {"argv": ["sleep", "10"]}, node=number, stream=3),
                *[Frame(Kind.STDIN, number, 0, 3, b"x" * DATA_BYTES)] * (2 + 2 * WINDOW // DATA_BYTES),
                with_document(Kind.OPEN, {"argv": ["sleep", "10"]}, node=number, stream=4),
                Frame(Kind.CREDIT, number, 0, 4, b"too short"),
                Frame(Kind.STDIN, number, 0, 99, b"for no command"),
                Frame(Kind.CLOSE, number, 0, 98),
            ]
            peer.sendall(b"".join(frame.encode() for frame in frames))
            decoder, failed = Decoder(), set()
            while failed < {1, 2, 3, 4}:
                failed |= {one.stream for one in decoder.frames(peer.recv(65536)) if one.kind == Kind.FAILED}
            assert failed == {1, 2, 3, 4}
    assert "is lost" not in nodes.output(0)
    works(nodes)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_follower_that_is_cut_at_any_byte_leaves_nothing_behind(nodes: JobNodes) -> None:
    works(nodes)
    frames = [Frame(Kind.FOLLOW)]
    for number in range(2):
        frames += [
            with_document(Kind.OPEN, {"argv": ["cat"]}, node=number, stream=1),
            Frame(Kind.STDIN, number, 0, 1, b"x" * 5),
            Frame(Kind.POLICY, body=b'{"orphan_timeout_s": 60, "warn_at": null, "on_warning": []}'),
        ]
    content = b"".join(frame.encode() for frame in frames)
    fds = [Path(f"/proc/{process.pid}/fd") for process in nodes.processes.values()]
    before = [len(list(one.iterdir())) for one in fds]
    for position in range(0, len(content), 7):
        with tls_to(nodes, nodes.identity) as peer:
            peer.sendall(content[:position])
            if position % 2:
                # The end is a reset.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    for process in nodes.processes.values():
        eventually(lambda process=process: not children(process.pid))  # type: ignore[misc]
    # The first follower's connection may still have been open when they were counted.
    eventually(lambda: all(len(list(one.iterdir())) <= count for one, count in zip(fds, before, strict=True)))
    works(nodes)


def test_random_frames_of_a_peer_with_the_key_harm_no_other(nodes: JobNodes) -> None:
    job = nodes.job()
    other = job.transport("node", 1).open(["cat"])
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    bodies = [b"", b"{", b'{"argv": ["cat"]}', b"x" * 100, b"\7\0\0\1\0", b"\xff" * 5, b"x" * DATA_BYTES]
    kinds = [kind for kind in Kind if kind not in (Kind.END, Kind.POLICY)]
    for _ in range(100):
        with tls_to(nodes, nodes.identity) as peer, suppress(ConnectionError, ssl.SSLError):
            peer.sendall(Frame(chance.choice([Kind.FOLLOW, Kind.FOLLOW, Kind.FOLLOW, *kinds])).encode())
            # Most kinds end the connection.
            for _ in range(20):
                kind = chance.choice([Kind.OPEN, Kind.STDIN, Kind.CREDIT, Kind.CLOSE, Kind.STDIN_EOF] * 8 + kinds)
                frame = Frame(
                    kind, chance.randrange(3), chance.randrange(3), chance.randrange(4), chance.choice(bodies)
                )
                peer.sendall(frame.encode())
    other.send(b"still\n")
    assert line_of(other) == b"still\n"
    for process in nodes.processes.values():
        assert process.poll() is None
    other.close()
    works(nodes)


def test_another_account_cannot_use_the_unix_socket(nodes: JobNodes) -> None:
    nodes.wait_listening()
    if os.getuid() != 0:
        pytest.skip("only root may become another account")
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            sock = socket.socket(socket.AF_UNIX)
            # A connection that were accepted would get no answer for 10 s.
            sock.settimeout(5)
            sock.connect(f"\0{nodes.identity.socket_name(nodes.job_id)}")
            os._exit(0 if sock.recv(1) == b"" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    works(nodes)


# -- strangers in the place of the first node

Handler = Callable[[socket.socket], None]


@contextmanager
def server(handler: Handler) -> Iterator[int]:
    """Yield the port of a server that handles one connection after the other."""
    listener = socket.create_server((ADDRESS, 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock, suppress(OSError, ssl.SSLError):
                handler(sock)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def outcome(port: int, identity: JobIdentity, *, timeout_s: float = 3.0) -> HostError:
    job = Job("17", identity, tcp_routes(ADDRESS, [port]))
    started_s = time.monotonic()
    try:
        job.transport("node", 0).run(["true"], timeout_s=timeout_s)
    except HostError as error:
        assert time.monotonic() - started_s < timeout_s + 5
        return error
    finally:
        job.close()
    raise AssertionError("it worked")


def test_what_answers_in_place_of_a_job_is_named() -> None:
    identity = JobIdentity.create()
    with socket.create_server((ADDRESS, 0)) as closed:
        port = closed.getsockname()[1]
    error = outcome(port, identity)
    assert (type(error), "Connection refused" in str(error)) == (HostUnreachableError, True)
    with server(lambda sock: sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n") or drained(sock)) as port:
        error = outcome(port, identity)
        assert (type(error), "'SSH-2.0-OpenSSH_9.6" in str(error)) == (HostProtocolError, True)
    with server(lambda sock: None) as port:
        error = outcome(port, identity)
        assert (type(error), "closed the connection" in str(error)) == (HostUnreachableError, True)
    with server(drained) as port:
        error = outcome(port, identity)
        assert (type(error), "sent nothing in time" in str(error)) == (HostUnreachableError, True)


def test_another_certificate_is_refused() -> None:
    ours, other = JobIdentity.create(), JobIdentity.create()
    with server(
        lambda sock: drained(tls_context(other.certificate, other.key, is_server=True).wrap_socket(sock, True))
    ) as port:
        error = outcome(port, ours)
    assert (type(error), "another certificate" in str(error)) == (HostKeyError, True)


def test_a_first_node_that_does_not_accept_our_certificate_is_named() -> None:
    ours, other = JobIdentity.create(), JobIdentity.create()

    def handler(sock: socket.socket) -> None:
        context = tls_context(ours.certificate, ours.key, is_server=True)
        # It has our certificate, and expects another one of us.
        strict = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        strict.verify_mode = ssl.CERT_REQUIRED
        strict.load_verify_locations(cadata=other.certificate)
        with _file(f"{ours.key}\n{ours.certificate}") as path:
            strict.load_cert_chain(path)
        del context
        drained(strict.wrap_socket(sock, True))

    with server(handler) as port:
        error = outcome(port, ours)
    assert (type(error), "refuses the certificate" in str(error)) == (HostAuthError, True)


def drained(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


HELLO = with_document(Kind.HELLO, {"protocol": PROTOCOL, "job": "17", "nodes": 1, "hosts": {"0": "n"}, "warnings": []})


def hello(**changes: object) -> bytes:
    return with_document(Kind.HELLO, {**HELLO.document(), **changes}).encode()


@pytest.mark.parametrize(
    ("sent", "kind", "message"),
    [
        pytest.param(b"", HostUnreachableError, "in the middle of the handshake", id="no greeting"),
        pytest.param(HELLO.encode()[:40], HostUnreachableError, "in the middle of the handshake", id="half a greeting"),
        pytest.param(HELLO.encode(), HostUnreachableError, "was cut", id="end"),
        pytest.param(hello(protocol=2), HostProtocolError, "protocol must be 1", id="protocol"),
        pytest.param(hello(nodes=10**9), HostProtocolError, "greeting lacks nodes", id="nodes"),
        pytest.param(hello(hosts={"x": "y"}), HostProtocolError, "number of a node", id="node"),
        pytest.param(hello(hosts={"0": "y" * 300}), HostProtocolError, "name of a node", id="name"),
        pytest.param(hello(warnings=[{"node": 0, "cause": "\x1b[2J"}]), HostProtocolError, "a warning has", id="cause"),
        pytest.param(Frame(Kind.JOINED).encode(), HostProtocolError, "first frame is JOINED", id="first frame"),
        pytest.param(HELLO.encode() + b"\xff" + b"\0" * 14, HostProtocolError, "unknown kind 255", id="kind"),
        pytest.param(HELLO.encode() + b"\x09" + b"\xff" * 14, HostProtocolError, "a frame has", id="length"),
        pytest.param(HELLO.encode() + Frame(Kind.HELLO).encode(), HostProtocolError, "sent a frame HELLO", id="twice"),
        pytest.param(HELLO.encode() + Frame(Kind.LOST, body=b"[" * 9).encode(), HostProtocolError, "breaks", id="JSON"),
    ],
)  # fmt: skip
def test_a_first_node_that_breaks_the_protocol_is_named(sent: bytes, kind: type, message: str) -> None:
    identity = JobIdentity.create()
    context = tls_context(identity.certificate, identity.key, is_server=True)

    def handler(sock: socket.socket) -> None:
        with context.wrap_socket(sock, True) as tls:
            tls.recv(4096)
            tls.sendall(sent)
            if kind is HostProtocolError:
                drained(tls)

    with server(handler) as port:
        error = outcome(port, identity)
    assert (type(error), message in str(error)) == (kind, True), error
    assert "\x1b" not in str(error)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param([Frame(Kind.STDOUT, body=b"x" * DATA_BYTES)] * (1 + WINDOW // DATA_BYTES), "window", id="flood"),
        pytest.param([Frame(Kind.EXIT, body=b"x")], "wrong length", id="exit"),
        pytest.param([Frame(Kind.CREDIT, body=b"")], "wrong length", id="credit"),
        pytest.param([Frame(Kind.GONE)], "a command sent a frame GONE", id="kind"),
        pytest.param([Frame(Kind.FAILED, body=b"{")], "JSON", id="JSON"),
        pytest.param([Frame(Kind.EXIT, 1, body=exit_body(0))], "node 1 answers for node 0", id="node"),
    ],
)  # fmt: skip
def test_a_node_that_breaks_the_protocol_of_a_command_is_named(answer: list[Frame], message: str) -> None:
    identity = JobIdentity.create()
    context = tls_context(identity.certificate, identity.key, is_server=True)

    def handler(sock: socket.socket) -> None:
        with context.wrap_socket(sock, True) as tls:
            decoder = Decoder()
            while data := tls.recv(65536):
                for frame in decoder.frames(data):
                    if frame.kind == Kind.FOLLOW:
                        tls.sendall(HELLO.encode())
                    elif frame.kind == Kind.OPEN:
                        tls.sendall(Frame(Kind.OPENED, 0, 0, frame.stream).encode())
                        for one in answer:
                            tls.sendall(one._replace(stream=frame.stream).encode())

    with server(handler) as port:
        job = Job("17", identity, tcp_routes(ADDRESS, [port]))
        # Once it is closed, a further request gets another one.
        connection = job.connection(time.monotonic() + 10)
        channel = job.transport("node", 0).open(["true"])
        assert connection.wait_closed(time.monotonic() + 10)
        assert isinstance(connection.failure, HostProtocolError)
        assert message in str(connection.failure)
        drain(channel)
        assert b"breaks the protocol" in channel.errors()
        job.close()


def test_other_programs_at_the_ports_of_a_job_are_passed_by(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2) as nodes, server(drained) as deaf, server(lambda sock: None) as closing:
        routes = [*tcp_routes(ADDRESS, [closing, deaf]), *nodes.routes()]
        job = nodes.job(routes=routes)
        assert job.transport("node", 1).run(["true"], timeout_s=30).exit_code == 0
        assert job.route is not None
        assert str(port_of(nodes)) in job.route.name


def test_a_job_takes_the_next_port_if_the_first_is_taken(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(job_nodes(tmp_path, count=2))
        port = port_of(nodes)
        for process in nodes.processes.values():
            process.kill()
            process.wait()
        taken = stack.enter_context(socket.create_server((ADDRESS, port)))
        assert taken
        (tmp_path / "output0").unlink()
        for number in range(2):
            nodes.start(number)
        assert port_of(nodes) != port
        works(nodes, timeout_s=20)
