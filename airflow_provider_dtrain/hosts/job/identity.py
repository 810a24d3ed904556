"""Certificate and key of one job, which both sides of every connection present."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_dtrain.supervisor.serve.names import fingerprint, socket_name

#: Ports below those that Linux gives to outgoing connections.
PORT_RANGE = (20_000, 32_767)
PORTS = 16


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """Secret of one job. Who has the key may execute commands on the nodes of the job."""

    #: PEM of the self-signed certificate.
    certificate: str
    #: PEM of its key.
    key: str = field(repr=False)

    @classmethod
    def create(cls) -> JobIdentity:
        """Return a new certificate and key."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dtrain job")])
        # Both sides compare the certificate itself. Clocks of nodes may be wrong, so it is valid at any time.
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
            .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
            key=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ).decode(),
        )

    def ports(self, port_range: Sequence[int] | None = None) -> list[int]:
        """Return the ports that the first node tries, in their order. Always the same for a job.

        :param port_range: first and last port, None for the default
        """
        first, last = PORT_RANGE if port_range is None else port_range
        ports = range(first, last + 1)
        # The ports need not be secret, only different between jobs.
        chosen = random.Random(fingerprint(self.certificate))  # noqa: S311
        return chosen.sample(ports, min(PORTS, len(ports)))

    def socket_name(self, job_id: str) -> str:
        """Return the name of the unix socket on the first node."""
        return socket_name(job_id, self.certificate)
