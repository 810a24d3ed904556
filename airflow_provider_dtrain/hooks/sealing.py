"""Secrets of this package in the store, encrypted with Airflow's Fernet key."""

from __future__ import annotations


def sealed_bytes(value: bytes) -> bytes:
    """Return a secret of this package, encrypted with Airflow's Fernet key."""
    from airflow.sdk.crypto import get_fernet

    return get_fernet().encrypt(value)


def opened_bytes(sealed: bytes) -> bytes:
    """Return a secret that :func:`sealed_bytes` encrypted."""
    from airflow.sdk.crypto import get_fernet

    return get_fernet().decrypt(sealed)
