"""HTTPS servers on this machine with certificates of each kind, and a proxy in front of them."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.tcp_proxy import received

DAY = timedelta(days=1)


class Authority:
    """An authority that signs certificates.

    :param folder: receives its files
    """

    def __init__(self, folder: Path, name: str = "authority of a test") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._builder(self.name, self.key.public_key(), timedelta(0), 30 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        #: File of its certificate.
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(_pem(builder.add_extension(usage, critical=True).sign(self.key, hashes.SHA256())))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begin: timedelta, end: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin - timedelta(minutes=5))
            .not_valid_after(now + end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(authority_key, critical=False)
        )

    def certificate(
        self,
        names: Sequence[str] = ("127.0.0.1", "air.test"),
        *,
        begin: timedelta = timedelta(0),
        end: timedelta = 30 * DAY,
    ) -> Path:
        """Return the file of a certificate of a server and its key.

        :param names: addresses and host names
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        found = [x509.IPAddress(ipaddress.ip_address(one)) if one[0].isdigit() else x509.DNSName(one) for one in names]
        builder = self._builder(subject, key.public_key(), begin, end)
        builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
        return self._written(builder.sign(self.key, hashes.SHA256()), key)

    def _written(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
        file = self.folder / f"{certificate.serial_number}.pem"
        form = serialization.PrivateFormat.PKCS8
        written = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        file.write_bytes(written + _pem(certificate))
        return file


def signed_by_itself(folder: Path) -> tuple[Path, Path]:
    """Return the file of a certificate with its key, and that of the certificate alone."""
    authority = Authority(folder, "127.0.0.1")
    key = authority.key
    builder = authority._builder(authority.name, key.public_key(), timedelta(0), 30 * DAY)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    public = folder / "public.pem"
    public.write_bytes(_pem(certificate))
    return authority._written(certificate, key), public


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class Empty(BaseHTTPRequestHandler):
    """Answers each request by an empty list, and each login by a token."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer, and keep the target and the authorization of the request."""
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.server.proxy_tokens.append(self.headers.get("Proxy-Authorization"))  # type: ignore[attr-defined]
        self._answer(b'{"rows": [], "total": 0}')

    def do_POST(self) -> None:
        """Give a token for any password."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b'{"access_token": "given"}')

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Tunnel(Empty):
    """A proxy. It leads to a port of this machine, whatever host a request names."""

    def do_CONNECT(self) -> None:
        """Open a tunnel, if the user is the expected one."""
        server = self.server
        server.seen.append(self.path)  # type: ignore[attr-defined]
        wanted = server.user and f"Basic {base64.b64encode(server.user.encode()).decode()}"  # type: ignore[attr-defined]
        if wanted and self.headers.get("Proxy-Authorization") != wanted:
            self.send_error(407)
            return
        if server.status != 200:  # type: ignore[attr-defined]
            self.send_error(server.status)  # type: ignore[attr-defined]
            return
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        with socket.create_connection(("127.0.0.1", server.leads_to)) as other:  # type: ignore[attr-defined]
            threading.Thread(target=_relay, args=(self.connection, other), daemon=True).start()
            _relay(other, self.connection)


def _relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := received(source):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def serving(
    certificate: Path | None = None, *, leads_to: int | None = None, clients: Path | None = None
) -> Iterator[ThreadingHTTPServer]:
    """Serve on a free port of this machine.

    :param certificate: with its key; None = plain HTTP
    :param leads_to: port to which it leads as a proxy
    :param clients: authority whose certificates clients must have
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty if leads_to is None else Tunnel)
    server.seen, server.proxy_tokens = [], []  # type: ignore[attr-defined]
    server.leads_to, server.user, server.status = leads_to, "", 200  # type: ignore[attr-defined]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if clients is not None:
            context.load_verify_locations(clients)
            # With TLS 1.3, clients learn of it only with the first answer.
            context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_2
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
