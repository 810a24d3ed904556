"""Mutual TLS with the one certificate of a job, over bytes in memory. Both sides use this module."""

from __future__ import annotations

import os
import ssl

_READ_BYTES = 256 << 10
#: Most bytes that the other side may send before it has proved that it has the key.
HANDSHAKE_BYTES = 64 << 10


def tls_context(certificate: str, key: str, *, is_server: bool) -> ssl.SSLContext:
    """Return a context that accepts only the other owner of the key.

    :param certificate: PEM
    :param key: PEM; it is in memory only
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if ssl.HAS_TLSv1_3 else ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=certificate)
    if is_server and ssl.HAS_TLSv1_3:
        context.num_tickets = 0
    # The module loads a key from a file only, so this file is in memory.
    fd = os.memfd_create("dtrain")
    try:
        with open(fd, "w", closefd=False) as file:
            file.write(f"{key}\n{certificate}\n")
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


class TlsSession:
    """One end of a TLS connection without a socket. Not thread-safe.

    :param certificate: PEM that the other side must present
    """

    def __init__(self, context: ssl.SSLContext, certificate: str, *, is_server: bool) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=is_server)
        self._pinned = ssl.PEM_cert_to_DER_cert(certificate)
        self._before_ready = 0
        #: True after the handshake.
        self.is_ready = False
        #: True once the other side has ended the session.
        self.is_ended = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the network and return the content that they complete.

        :raises ssl.SSLError: the bytes are not TLS, or the other side has another certificate
        """
        self._received.write(data)
        if not self.is_ready:
            self._before_ready += len(data)
            if not self._shakes_hands():
                return b""
        content = bytearray()
        try:
            while chunk := self._tls.read(_READ_BYTES):
                content += chunk
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        return bytes(content)

    def _shakes_hands(self) -> bool:
        """Go on with the handshake, and return whether it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._before_ready > HANDSHAKE_BYTES:
                raise ssl.SSLError(f"no handshake within {HANDSHAKE_BYTES:,} bytes") from None
            return False
        if self._tls.getpeercert(binary_form=True) != self._pinned:
            raise ssl.SSLCertVerificationError("the other side has another certificate")
        self.is_ready = True
        return True

    def write(self, content: bytes) -> None:
        """Encrypt content. The session must be ready."""
        view = memoryview(content)
        while view:
            view = view[self._tls.write(view) :]

    def output(self) -> bytes:
        """Return the bytes for the network."""
        return self._to_send.read()
