"""Installation of the supervisor on a host: one folder, named by the content hash of its archive."""

from __future__ import annotations

import base64
import re

from airflow_provider_dtrain.core.launch.requirements import OLDEST_PYTHON, dotted
from airflow_provider_dtrain.errors import EnvironmentMissingError, HostError, HostProtocolError, HostRefusedError
from airflow_provider_dtrain.hosts.payload import Payload
from airflow_provider_dtrain.hosts.transport.base import Completed, Transport
from airflow_provider_dtrain.hosts.wire import NOISE_LIMIT_BYTES, shown

_MARK = "DTRAIN-INSTALL "
#: Line of a traceback.
_PLACE = re.compile(rb'^\s*File "([^"]+)", line \d+', re.MULTILINE)

# The interpreter may be of any version, including Python 2. Hosts often share home directories, so two hosts may
# install at the same time, hence the random name and the rename. A folder whose files are complete stays, because
# supervisors may run from it. Its bytecode is removed, in case that was damaged. A damaged folder is repaired file by
# file: while two renames swap it, another installer and a supervisor that starts would find no folder. If a file cannot
# be replaced, for example because a folder has its name, the whole folder is swapped.
_BOOTSTRAP = """
import sys
def say(words):
    sys.stdout.write("\\n@MARK@" + words + "\\n")
    sys.exit(0)
if sys.version_info < @MINIMUM@:
    say("old %d.%d.%d" % tuple(sys.version_info[:3]))
import errno, hashlib, io, os, shutil, tarfile
os.umask(0o077)
digest = sys.argv[2]
folder = os.path.join(sys.argv[1], "supervisor")
target = os.path.join(folder, digest)
archive = sys.stdin.buffer.read()
if hashlib.sha256(archive).hexdigest() != digest:
    say("digest")
with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
    files = {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}
part = target + "." + hashlib.sha256(os.urandom(16)).hexdigest()[:16]
damaged = part + ".old"
def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
def unpack():
    for name, content in files.items():
        path = os.path.join(part, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    for here, _, _ in os.walk(part):
        sync(here)
def is_complete():
    for name, content in files.items():
        try:
            with open(os.path.join(target, name), "rb") as file:
                if file.read() != content:
                    return False
        except OSError:
            return False
    return True
def replace():
    try:
        os.rename(part, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        try:
            repair()
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            unpack()
            os.rename(target, damaged)
            os.rename(part, target)
def repair():
    for name in files:
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.rename(os.path.join(part, name), path)
    for here, _, _ in os.walk(target):
        sync(here)
try:
    os.makedirs(folder, exist_ok=True)
    try:
        if is_complete():
            for here, _, _ in os.walk(target):
                shutil.rmtree(os.path.join(here, "__pycache__"), ignore_errors=True)
        else:
            unpack()
            try:
                replace()
            except OSError:
                # Another installer may have been faster.
                if not is_complete():
                    raise
        sync(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(damaged, ignore_errors=True)
    if not is_complete():
        say("digest")
except OSError as error:
    say("os %s %s" % (errno.errorcode.get(error.errno, "?"), error.strerror))
say("ok")
""".replace("@MARK@", _MARK).replace("@MINIMUM@", repr(OLDEST_PYTHON))
# One line without any character that a login shell might interpret. A file in the home directory may have the name of a
# module of Python, and the options that keep it out in one do not exist in Python 2.
_CODE = base64.b64encode(_BOOTSTRAP.encode()).decode()
_ONE_LINE = f"import sys;sys.path[:]=filter(None,sys.path);import base64;exec(base64.b64decode('{_CODE}'))"

_REFUSALS = {
    "ENOSPC": ("disk_full", "its disk is full; free some space"),
    "EDQUOT": ("disk_full", "the account's quota is used up; free some space"),
    "EROFS": ("read_only", "the file system is read-only; mount it read-write or choose another remote_dir"),
    "EACCES": ("read_only", "the account may not write there; change the owner or choose another remote_dir"),
}


def install(transport: Transport, *, python: str, remote_dir: str, archive: Payload, timeout_s: float) -> None:
    """Unpack the supervisor into ``remote_dir``. A second call changes nothing.

    :raises EnvironmentMissingError: the host has no interpreter, or one that is too old
    :raises HostRefusedError: the folder cannot be written
    """
    argv = [python, "-E", "-s", "-c", _ONE_LINE, remote_dir, archive.digest]
    done = transport.run(argv, stdin=archive.content, timeout_s=timeout_s)
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
        f"{dotted(OLDEST_PYTHON)} or newer is needed. Install it, or name another interpreter for this host."
    )


def _refusal(host: str, python: str, remote_dir: str, verdict: str) -> HostError | EnvironmentMissingError:
    kind, _, detail = verdict.partition(" ")
    if kind == "old":
        return EnvironmentMissingError(
            f"Host '{host}': interpreter '{python}' is Python {shown(detail.encode())}, {dotted(OLDEST_PYTHON)} or "
            "newer is needed. Install a newer Python, or name another interpreter for this host."
        )
    if kind == "os":
        errno_name, _, reason = detail.partition(" ")
        code, remedy = _REFUSALS.get(errno_name, ("install", "correct the cause"))
        return HostRefusedError(
            host,
            f"Host '{host}' cannot store the supervisor in '{remote_dir}': {shown(reason.encode())}; {remedy}.",
            code=code,
        )
    return HostProtocolError(host, f"The supervisor arrived damaged on host '{host}': {shown(verdict.encode())}.")


def _nonsense(host: str, python: str, done: Completed) -> HostProtocolError:
    if done.exit_code == 0:
        return HostProtocolError(
            host,
            f"Host '{host}' ended the session with exit status 0 before '{python}' started. A login script of the "
            "account ends it: look for 'exit' and 'exec' in ~/.bashrc, ~/.cshrc or config.fish there, and leave such "
            f"scripts early in shells that are not interactive ([[ $- == *i* ]] || return). {output_of(done)}",
        )
    return HostProtocolError(
        host,
        f"Host '{host}': '{python}' ended with exit status {done.exit_code} and without an answer while it installed "
        f"the supervisor. {output_of(done)}",
    )


def output_of(done: Completed) -> str:
    """Return the output of a program that ended without an answer, with the file in which Python stopped."""
    places = _PLACE.findall(done.stderr) if b"Traceback" in done.stderr else []
    where = f"Python stopped in {shown(places[-1])}. " if places else ""
    return f"{where}Output: '{shown(done.stdout)}'. Errors: '{shown(done.stderr.strip()[-200:])}'."
