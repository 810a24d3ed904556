"""The setup script of an environment: run by a login shell, for the variables that it exports."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zlib
from typing import IO, NamedTuple

from ..file_access import below
from ..files.archives import unpack_member
from ..files.layout import Layout
from ..limits import SETUP_BYTES, SETUP_OUTPUT, SETUP_S
from ..machine.host_environment import is_of_login
from ..names import ENV_NAME
from ..refusal import Refused
from .supervised import SupervisedProgram

#: Set for each rank by the launch.
_OF_LAUNCH = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER"
    r"|TORCHELASTIC_\w+|DTRAIN_\w+|VIRTUAL_ENV|PET_\w+)"
)
#: Runs the script in the shell, and then writes the variables. The output of both goes to the same pipe.
_PROGRAM = '. "$0" >&2 </dev/null && exec env -0 >&3'
_LINES = 20


class Setup(NamedTuple):
    """Variables that a setup script has set."""

    variables: dict[str, str]
    #: Names of those that it must not set.
    refused: list[str]


def run_setup(layout: Layout, payload: str, path: str) -> Setup:
    """Run a script of the code and return the variables that differ afterwards.

    :param payload: digest of the archive of the code, of which the script sees no other file
    :param path: of the script in it
    :raises Refused: ``setup``, it failed, or exceeded its time or its output
    """
    with tempfile.TemporaryDirectory(prefix="setup-", dir=layout.state_dir) as folder:
        script = _unpacked(layout, payload, path, folder)
        found = _variables(script, path, folder)
    changed = {name: value for name, value in found.items() if os.environ.get(name) != value}
    # Of the variables of a login, ranks get those that decide where their programs and modules are.
    own = {
        name: value
        for name, value in changed.items()
        if ENV_NAME.fullmatch(name) and (name == "PYTHONPATH" or not is_of_login(name))
    }
    refused = sorted(name for name in changed if _OF_LAUNCH.fullmatch(name))
    return Setup({name: value for name, value in own.items() if not _OF_LAUNCH.fullmatch(name)}, refused)


def _unpacked(layout: Layout, payload: str, path: str, folder: str) -> str:
    try:
        with tarfile.open(layout.archive("payloads", payload), "r:gz") as archive:
            for member in archive:
                if os.path.normpath(member.name) == os.path.normpath(path) and member.isreg():
                    name = os.path.basename(path)
                    unpack_member(archive, member, folder, [name])
                    return below(folder, name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Refused("bad_archive", f"The archive of the code is damaged: {error}. Send it again.") from error
    raise Refused("setup", f"The code has no file {path}. Correct environment.setup.")


def _variables(script: str, name: str, folder: str) -> dict[str, str]:
    reader, writer = os.pipe()
    output = bytearray()
    answer = bytearray()
    shell = shutil.which("bash") or "/bin/sh"
    try:
        # The shell numbers its descriptors: 3 is the pipe for the variables.
        supervised = SupervisedProgram(
            [shell, "-l", "-c", f"exec 3>&{writer}; {_PROGRAM}", script],
            SETUP_S,
            [writer],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    finally:
        os.close(writer)
    assert supervised.process.stdout is not None
    streams = ((supervised.process.stdout, output, SETUP_OUTPUT), (os.fdopen(reader, "rb"), answer, SETUP_BYTES))
    threads = [threading.Thread(target=_read, args=stream, daemon=True) for stream in streams]
    try:
        for thread in threads:
            thread.start()
        status = supervised.wait()
    finally:
        for thread in threads:
            thread.join(5.0)
        for file, _, _ in streams:
            file.close()
    if status is None:
        raise Refused("setup", f"{name} did not end within {SETUP_S:g} s.", lines=_tail(output))
    if status != 0:
        raise Refused("setup", f"{name} ended with status {status}.", lines=_tail(output))
    if len(answer) >= SETUP_BYTES:
        raise Refused("setup", f"{name} sets variables of more than {SETUP_BYTES:,} bytes.", lines=_tail(output))
    pairs = (one.partition("=") for one in bytes(answer).decode("utf-8", "surrogateescape").split("\0") if one)
    return {key: value for key, equals, value in pairs if equals and "\n" not in key}


def _read(source: IO[bytes], target: bytearray, limit: int) -> None:
    """Read a pipe to its end, and keep the last bytes."""
    with contextlib.suppress(OSError, ValueError):
        while piece := os.read(source.fileno(), 1 << 16):
            target += piece
            del target[:-limit]


def _tail(output: bytearray) -> list[str]:
    return bytes(output).decode("utf-8", "replace").rstrip().splitlines()[-_LINES:]
