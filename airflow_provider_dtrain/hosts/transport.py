"""How bytes reach a host. ``ssh.py`` and ``local.py`` implement this protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that has ended."""

    #: Exit status; negative for a signal, 127 when the program does not exist.
    exit_code: int
    stdout: bytes
    stderr: bytes


class Channel(Protocol):
    """Standard input and output of one long-lived command. Thread-safe: one reader, one writer."""

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Write all of ``data`` to the command's standard input.

        :raises HostUnreachableError: the channel is gone or the write took longer than ``timeout_s``
        """

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes of standard output, ``b""`` at the end, None when none came in time."""

    def errors(self) -> bytes:
        """Return what the command wrote to standard error so far, at most the last 64 KiB."""

    def exit_code(self) -> int | None:
        """Return the exit status once the command has ended, else None."""

    def finish_input(self) -> None:
        """Close the command's standard input; never raises."""

    def wait_exit(self, timeout_s: float) -> int | None:
        """Return the exit status, or None when the command has not ended in time."""

    def close(self) -> None:
        """Close the channel; repeatable, never raises."""


class Transport(Protocol):
    """One host. Commands are argument vectors: no user string is ever parsed by a shell.

    Commands start in the account's home directory. Every operation has a deadline.
    """

    #: Name under which the host is registered; used in messages.
    host: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Run a command to its end.

        :raises HostUnreachableError: no connection, or no end within ``timeout_s``
        :raises HostKeyError: the host key is unknown or has changed
        :raises HostAuthError: the host refused the credentials
        """

    def open(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Channel:
        """Start a command and return its channel; raises as :meth:`run` does."""

    def close(self) -> None:
        """Close every connection; repeatable, never raises."""
