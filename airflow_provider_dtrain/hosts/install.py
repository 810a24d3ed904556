"""Installation of the supervisor on a host: one file, named by its content hash."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

from airflow_provider_dtrain.errors import EnvironmentMissingError, HostError, HostProtocolError, HostRefusedError
from airflow_provider_dtrain.hosts.transport.base import Completed, Transport
from airflow_provider_dtrain.hosts.wire import NOISE_LIMIT_BYTES, shown

MINIMUM_PYTHON = (3, 9)
_MARK = "DTRAIN-INSTALL "

# The interpreter may be of any version, including Python 2. Hosts often share home directories, so two hosts may
# install at the same time, hence the random name and the rename.
_BOOTSTRAP = """
import sys
def say(words):
    sys.stdout.write("\\n@MARK@" + words + "\\n")
    sys.exit(0)
if sys.version_info < @MINIMUM@:
    say("old %d.%d.%d" % tuple(sys.version_info[:3]))
import errno, hashlib, os
os.umask(0o077)
digest = sys.argv[2]
folder = os.path.join(sys.argv[1], "supervisor")
target = os.path.join(folder, digest + ".py")
source = sys.stdin.buffer.read()
if hashlib.sha256(source).hexdigest() != digest:
    say("digest")
part = target + "." + hashlib.sha256(os.urandom(16)).hexdigest()[:16]
try:
    os.makedirs(folder, exist_ok=True)
    try:
        with open(part, "xb") as file:
            file.write(source)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, target)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    with open(target, "rb") as file:
        if hashlib.sha256(file.read()).hexdigest() != digest:
            say("digest")
except OSError as error:
    say("os %s %s" % (errno.errorcode.get(error.errno, "?"), error.strerror))
say("ok")
""".replace("@MARK@", _MARK).replace("@MINIMUM@", repr(MINIMUM_PYTHON))
# One line without any character that a login shell might interpret.
_ONE_LINE = f"import base64;exec(base64.b64decode('{base64.b64encode(_BOOTSTRAP.encode()).decode()}'))"

_REFUSALS = {
    "ENOSPC": ("disk_full", "its disk is full; free some space"),
    "EDQUOT": ("disk_full", "the account's quota is used up; free some space"),
    "EROFS": ("read_only", "the file system is read-only; mount it read-write or choose another remote_dir"),
    "EACCES": ("read_only", "the account may not write there; change the owner or choose another remote_dir"),
}


@functools.cache
def supervisor_source() -> bytes:
    """Return the source of the supervisor that is sent to hosts."""
    return resources.files("airflow_provider_dtrain.hosts").joinpath("supervisor.py").read_bytes()


def digest_of(source: bytes) -> str:
    """Return the content hash of a supervisor, which names its file on hosts."""
    return hashlib.sha256(source).hexdigest()


def install(transport: Transport, *, python: str, remote_dir: str, source: bytes, timeout_s: float) -> None:
    """Write the supervisor into ``remote_dir``. A second call changes nothing.

    :raises EnvironmentMissingError: the host has no interpreter, or one that is too old
    :raises HostRefusedError: the folder cannot be written
    """
    argv = [python, "-c", _ONE_LINE, remote_dir, digest_of(source)]
    done = transport.run(argv, stdin=source, timeout_s=timeout_s)
    verdict = _verdict(done)
    if verdict == "ok":
        return
    if verdict is None:
        raise missing_python(transport.host, python, done) or _nonsense(transport.host, python, done)
    raise _refusal(transport.host, python, remote_dir, verdict)


def _verdict(done: Completed) -> str | None:
    lines = done.stdout[-NOISE_LIMIT_BYTES:].decode("utf-8", "replace").splitlines()
    marked = [line.removeprefix(_MARK).strip() for line in lines if line.startswith(_MARK)]
    return marked[-1] if marked else None


def missing_python(host: str, python: str, done: Completed) -> EnvironmentMissingError | None:
    """Return the error for an interpreter that could not be started, or None if it was started."""
    if done.exit_code not in (126, 127):
        return None
    how = "cannot be executed" if done.exit_code == 126 else "does not exist"
    return EnvironmentMissingError(
        f"Host '{host}': interpreter '{python}' {how} there ({shown(done.stderr).strip()}). Python "
        f"{_dotted(MINIMUM_PYTHON)} or newer is needed. Install it, or name another interpreter for this host."
    )


def _refusal(host: str, python: str, remote_dir: str, verdict: str) -> HostError | EnvironmentMissingError:
    kind, _, words = verdict.partition(" ")
    if kind == "old":
        return EnvironmentMissingError(
            f"Host '{host}': interpreter '{python}' is Python {shown(words.encode())}, {_dotted(MINIMUM_PYTHON)} or "
            "newer is needed. Install a newer Python, or name another interpreter for this host."
        )
    if kind == "os":
        errno_name, _, reason = words.partition(" ")
        code, remedy = _REFUSALS.get(errno_name, ("install", "correct the cause"))
        return HostRefusedError(
            host, f"Host '{host}' cannot store the supervisor in '{remote_dir}': {shown(reason.encode())}; {remedy}.",
            code=code,
        )  # fmt: skip
    return HostProtocolError(host, f"The supervisor arrived damaged on host '{host}': {shown(verdict.encode())}.")


def _nonsense(host: str, python: str, done: Completed) -> HostProtocolError:
    return HostProtocolError(
        host,
        f"Host '{host}': '{python}' ended with exit status {done.exit_code} and without an answer while it installed "
        f"the supervisor. Output: '{shown(done.stdout)}'. Errors: '{shown(done.stderr)}'.",
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
