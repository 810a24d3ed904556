"""Protocols for transports to a host. ``ssh.py`` and ``local.py`` implement them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that has ended."""

    #: Exit status; negative for a signal, 127 if the program does not exist.
    exit_code: int
    stdout: bytes
    stderr: bytes


class Channel(Protocol):
    """Standard input and output of one long-lived command.

    Thread-safe for one reader and one writer.
    """

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Write all of ``data`` to the command's standard input.

        :raises HostUnreachableError: the channel is closed, or the write took longer than ``timeout_s``
        """

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes of standard output, ``b""`` at the end, or None on a time-out."""

    def errors(self) -> bytes:
        """Return the command's standard error so far, at most the last 64 KiB."""

    def exit_code(self) -> int | None:
        """Return the exit status once the command has ended, else None."""

    def finish_input(self) -> None:
        """Close the command's standard input. Never raises."""

    def wait_exit(self, timeout_s: float) -> int | None:
        """Return the exit status, or None if the command has not ended in time."""

    def close(self) -> None:
        """Close the channel. Repeatable, never raises."""


class Transport(Protocol):
    """Connection to one host, which runs commands there.

    Commands are argument vectors: no shell ever parses a user string. They start in the account's home directory. Every
    operation has a deadline.
    """

    #: Name under which the host is registered; used in messages.
    host: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Run a command to its end.

        :raises HostUnreachableError: no connection, or the command did not end within ``timeout_s``
        :raises HostKeyError: the host key is unknown or has changed
        :raises HostAuthError: the host refused the credentials
        """

    def open(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Channel:
        """Start a command and return its channel. Raises like :meth:`run`."""

    def close(self) -> None:
        """Close every connection. Repeatable, never raises."""


class HostKey(NamedTuple):
    """Public key that a host presents."""

    type: str
    base64: str
    #: Fingerprint in OpenSSH's format: ``SHA256:...``.
    fingerprint: str

    @property
    def line(self) -> str:
        """Type and key in the format of ``known_hosts`` and of a connection's ``host_key`` extra."""
        return f"{self.type} {self.base64}"


class HostKeys(Protocol):
    """Key of the machine behind a connection."""

    #: Address and port of the machine.
    address: str

    def is_known(self) -> bool:
        """Return whether the connection or this account knows the key already."""

    def fetch(self, timeout_s: float) -> HostKey:
        """Return the key that the machine presents, without logging in.

        :raises HostUnreachableError: no server answers there
        """

    def warning(self) -> str | None:
        """Return a warning about settings of the connection that would disable the check of the key."""


class TransportKind(Protocol):
    """The way to all hosts whose connections have one type."""

    def transport(self, host: str, connection: Any, host_key: str | None) -> Transport:
        """Return a transport, which connects when it is used.

        :param host: name under which the host is registered
        :param connection: Airflow connection of the host, None for this machine
        :param host_key: key that the host must show, None without one
        """

    def host_keys(self, connection: Any) -> HostKeys | None:
        """Return the key of the machine behind a connection, None if such hosts have no keys.

        :raises UserError: the connection cannot be used
        """
