"""Name of the socket of a job on its first node."""

from __future__ import annotations

import hashlib
import ssl


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 of a certificate, lower-case hex."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def socket_name(job: str, certificate: str) -> str:
    """Return the abstract name, which no other account can know before the job starts."""
    return f"dtrain-job-{job}-{fingerprint(certificate)[:16]}"
