"""Commands in a login shell, whose own output is left out of theirs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.safe_repr import as_sentence, printable_line
from airflow_provider_dtrain.core.slurm.refusals import FailureKind, command_failure
from airflow_provider_dtrain.errors import EnvironmentMissingError, HostAuthError, HostProtocolError
from airflow_provider_dtrain.hosts.transport.base import Completed, Transport

#: A login may take seconds where home directories are on a network.
MARGIN_S: Final = 15.0
#: Time between the limit of a command and its SIGKILL.
_KILL_AFTER_S: Final = 5
#: A login script must not read the input that is for the command. A mark in both streams ends the login's own output.
_OUTER: Final = (
    "exec 3<&0 </dev/null; exec bash -lc '"
    + ('exec <&3 3<&-; mark=$1; shift; printf "\\n%s\\n" "$mark"; printf "\\n%s\\n" "$mark" >&2; exec "$@"')
    + '\' bash "$@"'
)


@dataclass(frozen=True, kw_only=True)
class CommandOutput:
    """A command that has ended in a login shell."""

    exit_code: int
    stdout: str
    stderr: str


class LoginShell:
    """Runs commands in a login shell, so that PATH is that of a user who logs in.

    Each command ends on the login node at its own limit, even if the connection is cut.

    :param transport: of the login node
    :param margin_s: time that a command has beyond its own limit to log in, to be killed and to answer
    """

    def __init__(self, transport: Transport, *, margin_s: float = MARGIN_S) -> None:
        self.transport = transport
        self.margin_s = margin_s

    @property
    def host(self) -> str:
        """Name of the login node, for messages."""
        return self.transport.host

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> CommandOutput:
        """Return the output of a command.

        :param timeout_s: seconds after which the command is ended on the login node, with exit code 124
        :raises HostUnreachableError: no connection, or no end of the command in time
        :raises HostAuthError: the login is refused or has expired
        :raises HostProtocolError: the login prints something else than the command, or without an end
        :raises EnvironmentMissingError: the login node has no bash or no coreutils
        """
        mark = f"dtrain-{secrets.token_hex(16)}"
        limited = ["timeout", "-k", str(_KILL_AFTER_S), f"{timeout_s:g}", *argv]
        done = self.transport.run(
            ["sh", "-c", _OUTER, "sh", mark, *limited], stdin=stdin, timeout_s=timeout_s + self.margin_s
        )
        before, found, stdout = _text(done.stdout).rpartition(f"\n{mark}\n")
        if not found:
            raise self._no_shell(done, before + stdout)
        stderr = _text(done.stderr)
        return CommandOutput(exit_code=done.exit_code, stdout=stdout, stderr=stderr.rpartition(f"\n{mark}\n")[2])

    def _no_shell(self, done: Completed, stdout: str) -> Exception:
        text = f"{stdout}\n{_text(done.stderr)}"
        shown = as_sentence(printable_line(text, 300)) or "It printed nothing."
        if command_failure(done.exit_code, text).kind == FailureKind.LOGIN:
            return HostAuthError(
                self.host, f"The login to '{self.host}' is refused or has expired: {shown} Renew it, then this goes on."
            )
        if done.exit_code in (126, 127):
            return EnvironmentMissingError(f"Login node '{self.host}' needs sh, bash and timeout. It answered: {shown}")
        return HostProtocolError(
            self.host,
            f"The login shell of '{self.host}' ended with exit code {done.exit_code} before the command began: {shown}",
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
