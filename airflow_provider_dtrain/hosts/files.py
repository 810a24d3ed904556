"""Whole files to and from a host, each by a command of its own beside the follow channel."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.errors import HostError, HostProtocolError
from airflow_provider_dtrain.hosts.refusals import refusal
from airflow_provider_dtrain.hosts.transport import Completed, Transport
from airflow_provider_dtrain.hosts.wire import NOISE_LIMIT_BYTES, shown

#: Slowest network that a transfer is given time for.
_MIN_BYTES_PER_S = 500_000
_BASE_TIMEOUT_S = 60.0
_FETCH_TIMEOUT_S = 600.0
_TAR_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class FileCommands:
    """The supervisor's command line on one host.

    :param python: interpreter there
    :param remote_dir: as commands see it, which start in the home directory
    :param digest: content hash and name of the supervisor file
    """

    transport: Transport
    python: str
    remote_dir: str
    state_dir: str | None
    digest: str

    def argv(self, role: str, *args: str, state: bool = True) -> list[str]:
        """Return the command for a role of the supervisor file."""
        script = f"{self.remote_dir.rstrip('/')}/supervisor/{self.digest}.py"
        where = ["--state-dir", self.state_dir] if state and self.state_dir else []
        return [self.python, script, role, "--remote-dir", self.remote_dir, *where, *args]

    def send_archive(self, kind: str, digest: str, content: bytes) -> None:
        """Put an archive into ``payloads`` or ``libraries``; the host checks its digest.

        :raises HostRefusedError: the host could not keep it
        """
        timeout_s = _BASE_TIMEOUT_S + len(content) / _MIN_BYTES_PER_S
        argv = self.argv("receive", kind, digest, state=False)
        done = self.transport.run(argv, stdin=content, timeout_s=timeout_s)
        # A login script may have printed something before it, with or without the end of a line.
        if done.exit_code != 0 or not done.stdout.rstrip().endswith(b"ok"):
            raise self._refused(f"receive {kind}", done)

    def fetch(self, run: str, relpath: str) -> bytes:
        """Return a tar of a path below a run's folder.

        :raises HostRefusedError: there is no such path, or it may not be read
        """
        done = self.transport.run(self.argv("fetch", run, relpath), timeout_s=_FETCH_TIMEOUT_S)
        if done.exit_code != 0:
            raise self._refused("fetch", done)
        start = tar_start(done.stdout)
        if start is None:
            raise HostProtocolError(
                self.transport.host,
                f"Host '{self.transport.host}' answered 'fetch' with no archive: {shown(done.stdout)}",
            )
        return done.stdout[start:]

    def put(self, run: str, relpath: str, tar: bytes) -> None:
        """Unpack a tar below a path in a run's folder; raises as :meth:`send_archive` does."""
        timeout_s = _BASE_TIMEOUT_S + len(tar) / _MIN_BYTES_PER_S
        done = self.transport.run(self.argv("put", run, relpath), stdin=tar, timeout_s=timeout_s)
        if done.exit_code != 0:
            raise self._refused("put", done)

    def _refused(self, command: str, done: Completed) -> HostError:
        return refusal(self.transport.host, command, _reason(done))


def _reason(done: Completed) -> dict[str, Any]:
    """Return why a command failed: its JSON answer, else its last words."""
    for text in (done.stdout[-NOISE_LIMIT_BYTES:], done.stderr):
        # Behind what a login script may have printed.
        last = text.strip().rsplit(b"\n", 1)[-1]
        try:
            answer = json.loads(last[max(0, last.find(b"{")) :])
        except (ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and "code" in answer:
            return answer
    words = done.stderr.decode("utf-8", "replace").strip()[-500:] or shown(done.stdout)
    return {"code": f"exit {done.exit_code}", "message": words}


def tar_start(output: bytes) -> int | None:
    """Return where a tar begins behind what a login script may have printed, None without one."""
    mark = output.find(b"ustar", 0, NOISE_LIMIT_BYTES + _TAR_BLOCK)
    while mark >= 0:
        start = mark - 257
        if start >= 0 and _is_header(output[start : start + _TAR_BLOCK]):
            return start
        mark = output.find(b"ustar", mark + 1, NOISE_LIMIT_BYTES + _TAR_BLOCK)
    return None


def _is_header(block: bytes) -> bool:
    """Return whether a tar header's checksum (eight octal digits at 148, counted as blanks) fits."""
    digits = block[148:156].strip(b" \0")
    if len(block) < _TAR_BLOCK or not digits or digits.strip(b"01234567"):
        return False
    return sum(block[:148]) + 8 * 32 + sum(block[156:]) == int(digits, 8)
