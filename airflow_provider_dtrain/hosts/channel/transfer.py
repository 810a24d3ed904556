"""Transfer of whole files to and from a host, each by its own command beside the follow channel."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.timing import STALL_S
from airflow_provider_dtrain.errors import HostError, HostProtocolError, HostUnreachableError
from airflow_provider_dtrain.hosts.channel.errors import refusal
from airflow_provider_dtrain.hosts.transport.base import Channel, Completed, Transport
from airflow_provider_dtrain.hosts.wire import NOISE_LIMIT_BYTES, shown

#: Lowest network throughput that the deadline of a transfer allows for.
_MIN_BYTES_PER_S = 500_000
#: The same for files that a host sends or takes one by one. It is lower because a host may need 15 ms to open one of
#: many small files.
_MIN_FILE_BYTES_PER_S = 100_000
_BASE_TIMEOUT_S = 60.0
#: Options of the interpreter with which it imports from its own folders only, and from that of the program.
ISOLATED = ("-I",)
_PIECE_BYTES = 1 << 20
#: Maximum size of a request that a command reads.
REQUEST_LIMIT_BYTES = 4 << 20
_TAR_BLOCK = 512
#: Offset of the name of the format in a header.
_MARK_OFFSET = 257
#: Maximum bytes after an archive: tar pads its last record, and the reader may have read a little ahead.
_AFTER_ARCHIVE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileCommands:
    """Command line of the supervisor on one host.

    :param python: interpreter on the host
    :param remote_dir: folder on the host, absolute or relative to the home directory, in which commands start
    :param digest: content hash of the supervisor's archive and name of its folder
    """

    transport: Transport
    python: str
    remote_dir: str
    state_dir: str | None
    digest: str
    #: Folder for the locks of all accounts, None for the supervisor's default.
    lock_dir: str | None = None

    def argv(self, role: str, *args: str, state: bool = True) -> list[str]:
        """Return the command for a role of the supervisor."""
        program = f"{self.remote_dir.rstrip('/')}/supervisor/{self.digest}"
        where = ["--state-dir", self.state_dir] if state and self.state_dir else []
        where += ["--lock-dir", self.lock_dir] if state and self.lock_dir else []
        return [self.python, *ISOLATED, program, role, "--remote-dir", self.remote_dir, *where, *args]

    def send_archive(self, kind: str, digest: str, content: bytes) -> None:
        """Upload an archive into ``payloads`` or ``libraries``. The host checks its digest.

        :raises HostRefusedError: the host could not store it
        """
        timeout_s = _BASE_TIMEOUT_S + len(content) / _MIN_BYTES_PER_S
        argv = self.argv("receive", kind, digest, state=False)
        done = self.transport.run(argv, stdin=content, timeout_s=timeout_s)
        # A login script may have printed text before the answer, with or without a line end.
        if done.exit_code != 0 or not done.stdout.rstrip().endswith(b"ok"):
            raise self._refused(f"receive {kind}", done)

    def fetching(self, run: str, relpath: str) -> AbstractContextManager[Incoming]:
        """Yield a tar of a path below a run's folder as a file that is read in pieces as it arrives.

        :raises HostRefusedError: the path does not exist, or may not be read
        """
        return self._incoming("fetch", run, relpath)

    def outputs(
        self, run: str, *, known: Mapping[str, str], limit_bytes: int, limit_files: int, library_only: bool = False
    ) -> AbstractContextManager[Incoming]:
        """Yield a tar of the files that the ranks of a run wrote or changed, see ``role_outputs``.

        :param known: path -> version of files that need not be sent
        :param library_only: only what the training library writes: traces of the profiler, and media
        :raises HostRefusedError: the host does not have the run
        """
        asked = {
            "known": dict(known),
            "limit_bytes": limit_bytes,
            "limit_files": limit_files,
            "library_only": library_only,
        }
        request = json.dumps(asked).encode()
        if len(request) > REQUEST_LIMIT_BYTES:
            request = json.dumps({**asked, "known": {}}).encode()
        return self._incoming("outputs", run, request=request)

    @contextmanager
    def _incoming(self, role: str, *args: str, request: bytes = b"") -> Iterator[Incoming]:
        """Yield the tar that a command writes.

        :param request: input that the command reads first
        """
        pipe = self.transport.open(self.argv(role, *args))
        incoming = Incoming(self.transport.host, pipe)
        try:
            if request:
                Outgoing(self.transport.host, pipe).write(request)
            pipe.finish_input()
            if not incoming.find_tar():
                raise self._unfetched(role, pipe, incoming)
            yield incoming
            incoming.drain()
            if pipe.wait_exit(STALL_S) != 0:
                raise self._unfetched(role, pipe, incoming)
        finally:
            pipe.close()

    @contextmanager
    def putting(self, run: str, relpath: str) -> Iterator[Outgoing]:
        """Yield a file for writing a tar, which the host unpacks below a path in a run's folder as it arrives.

        :raises HostRefusedError: the host could not store it
        :raises HostUnreachableError: the host takes the bytes too slowly
        """
        pipe = self.transport.open(self.argv("put", run, relpath))
        outgoing = Outgoing(self.transport.host, pipe)
        try:
            # If the host refuses, the command ends before it has read all input. Its exit status shows this.
            with suppress(HostError):
                yield outgoing
            # The answer of a slow host would take another minute.
            if outgoing.slowness is not None:
                raise outgoing.slowness
            pipe.finish_input()
            incoming = Incoming(self.transport.host, pipe)
            answer = incoming.read_all(NOISE_LIMIT_BYTES)
            exit_code = pipe.wait_exit(STALL_S)
            if exit_code != 0:
                done = Completed(exit_code=-1 if exit_code is None else exit_code, stdout=answer, stderr=pipe.errors())
                raise self._refused("put", done)
        finally:
            pipe.close()

    def _unfetched(self, role: str, pipe: Channel, incoming: Incoming) -> HostError:
        exit_code = pipe.wait_exit(STALL_S)
        host = self.transport.host
        head = incoming.head
        if exit_code == 0:
            return HostProtocolError(host, f"Host '{host}' answered '{role}' without an archive: {shown(head)}")
        done = Completed(exit_code=-1 if exit_code is None else exit_code, stdout=head, stderr=pipe.errors())
        return self._refused(role, done)

    def _refused(self, command: str, done: Completed) -> HostError:
        return refusal(self.transport.host, command, _reason(done))


class _Patience:
    """Time that a host still has for a file.

    The host has ``STALL_S`` for all of it, and one second more for each 100,000 bytes that it sends or takes. The time
    counts only while this side waits, and never exceeds ``STALL_S``: a host that was fast cannot be slow later.

    :param verb: what the host does with the file, for messages
    """

    def __init__(self, host: str, verb: str) -> None:
        self._host = host
        self._verb = verb
        self.left_s = STALL_S

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.left_s -= time.monotonic() - begun

    def reward(self, size: int) -> None:
        self.left_s = min(STALL_S, self.left_s + size / _MIN_FILE_BYTES_PER_S)

    def exhausted(self) -> HostUnreachableError:
        return HostUnreachableError(
            self._host,
            f"Host '{self._host}' {self._verb} a file more slowly than {_MIN_FILE_BYTES_PER_S:,} bytes/s, and the "
            f"{STALL_S:g} s allowed for pauses are used up. Its disk or the network is overloaded. Check it with: "
            f"airflow dtrain hosts probe {self._host}",
        )


class Incoming:
    """Output of a command as a file to read from, at a minimum rate. It buffers a few hundred KiB at most."""

    def __init__(self, host: str, pipe: Channel) -> None:
        self._host = host
        self._pipe = pipe
        self._patience = _Patience(host, "sends")
        self._buffer = bytearray()
        self._ended = False
        #: First bytes of the output, for messages.
        self.head = b""

    def find_tar(self) -> bool:
        """Drop the output of a login script and return whether an archive follows."""
        tested = 0
        while (start := tar_start(bytes(self._buffer), tested)) is None:
            # A name of the format before this position has its whole header in the buffer, and is no archive's.
            tested = max(0, len(self._buffer) - _TAR_BLOCK + _MARK_OFFSET)
            if len(self._buffer) > NOISE_LIMIT_BYTES + 2 * _TAR_BLOCK or not self._more():
                self.head = bytes(self._buffer)
                return False
        del self._buffer[:start]
        return True

    def read(self, count: int = -1) -> bytes:
        """Return the next ``count`` bytes, or fewer at the end. Without a count, return all remaining bytes.

        :raises HostUnreachableError: the bytes arrive too slowly
        """
        while (count < 0 or len(self._buffer) < count) and self._more():
            pass
        size = len(self._buffer) if count < 0 else count
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def read_all(self, limit: int) -> bytes:
        """Read to the end and return the last ``limit`` bytes."""
        while self._more():
            del self._buffer[:-limit]
        return bytes(self._buffer)

    def drain(self) -> None:
        """Read to the end and discard the bytes.

        :raises HostProtocolError: more bytes follow the archive than the padding of tar
        """
        left = _AFTER_ARCHIVE_BYTES
        while self._more():
            left -= len(self._buffer)
            self._buffer.clear()
            if left < 0:
                raise HostProtocolError(self._host, f"Host '{self._host}' sent more bytes than the requested archive.")

    def _more(self) -> bool:
        if self._ended:
            return False
        with self._patience.waiting():
            chunk = self._pipe.receive(timeout_s=self._patience.left_s)
        if chunk is None or (chunk and self._patience.left_s <= 0.0):
            raise self._patience.exhausted()
        self._patience.reward(len(chunk))
        self._buffer += chunk
        self._ended = not chunk
        return bool(chunk)


class Outgoing:
    """Input of a command as a file to write to, at a minimum rate."""

    def __init__(self, host: str, pipe: Channel) -> None:
        self._pipe = pipe
        self._patience = _Patience(host, "takes")
        #: Error of a host that took the bytes too slowly, None if it did not.
        self.slowness: HostUnreachableError | None = None

    def write(self, data: bytes) -> int:
        """Send all of ``data``.

        :raises HostUnreachableError: the command takes the bytes too slowly, or reads no further input
        """
        for start in range(0, len(data), _PIECE_BYTES):
            self._send(data[start : start + _PIECE_BYTES])
        return len(data)

    def _send(self, piece: bytes) -> None:
        try:
            with self._patience.waiting():
                self._pipe.send(piece, timeout_s=max(0.0, self._patience.left_s))
        except HostUnreachableError as error:
            # Timers of channels differ by a few milliseconds.
            if self._patience.left_s > 0.1:
                raise
            self.slowness = self._patience.exhausted()
            raise self.slowness from error
        self._patience.reward(len(piece))


def _reason(done: Completed) -> JsonObject:
    """Return the reason why a command failed: its JSON answer, else the end of its standard error."""
    for text in (done.stdout[-NOISE_LIMIT_BYTES:], done.stderr):
        # The answer follows text that a login script may have printed.
        last = text.strip().rsplit(b"\n", 1)[-1]
        try:
            answer = json.loads(last[max(0, last.find(b"{")) :])
        except (ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and "code" in answer:
            return answer
    message = done.stderr.decode("utf-8", "replace").strip()[-500:] or shown(done.stdout)
    return {"code": f"exit {done.exit_code}", "message": message}


def tar_start(output: bytes, tested: int = 0) -> int | None:
    """Return the position of a tar after the output of a login script, or None without a tar.

    :param tested: offset before which no name of the format belongs to a tar
    """
    mark = output.find(b"ustar", tested, NOISE_LIMIT_BYTES + _TAR_BLOCK)
    while mark >= 0:
        start = mark - _MARK_OFFSET
        if start >= 0 and _is_header(output[start : start + _TAR_BLOCK]):
            return start
        mark = output.find(b"ustar", mark + 1, NOISE_LIMIT_BYTES + _TAR_BLOCK)
    return None


def _is_header(block: bytes) -> bool:
    """Return whether a tar header's checksum is correct.

    The checksum is eight octal digits at offset 148, which count as blanks.
    """
    digits = block[148:156].strip(b" \0")
    if len(block) < _TAR_BLOCK or not digits or digits.strip(b"01234567"):
        return False
    return sum(block[:148]) + 8 * 32 + sum(block[156:]) == int(digits, 8)
